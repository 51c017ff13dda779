use std::process::ExitCode;

use clap::Args;

use crate::database::Database;
use crate::demo::stage::Stage;
use crate::demo::{hammer, reservation, sliding_window, together, token_bucket};
use crate::error::CliError;
use crate::progress::Progress;

#[derive(Args, Debug)]
pub(crate) struct DemoArgs {
    /// Print JSON: one object per line, first the server, then each call with the number of its scene
    #[arg(long)]
    json: bool,
}

pub(crate) async fn run(args: &DemoArgs, database: Database) -> Result<ExitCode, CliError> {
    let running = database.start_durable().await?;
    let stage = Stage::set(&running, args.json).await?;
    let shown = show(&stage).await;
    // The schema is dropped in any case. If both steps fail, the first error is returned.
    let struck = stage.strike().await;
    shown.and(struck)?;
    Ok(ExitCode::SUCCESS)
}

async fn show(stage: &Stage) -> Result<(), CliError> {
    let progress = Progress::parts("demo", 5);
    stage.introduce().await?;
    token_bucket::show(stage).await?;
    stage.next(&progress).await;
    sliding_window::show(stage).await?;
    stage.next(&progress).await;
    reservation::show(stage).await?;
    stage.next(&progress).await;
    together::show(stage).await?;
    stage.next(&progress).await;
    hammer::show(stage).await
}
