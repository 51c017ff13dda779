use clap::Args;

use crate::database::Database;
use crate::demo::scenes::{hammer, reservation, sliding_window, together, token_bucket};
use crate::demo::stage::Stage;
use crate::error::CliError;
use crate::output::Progress;

#[derive(Args, Debug)]
pub(crate) struct DemoArgs {
    /// Print JSON: one object per line, first the server, then each call with the number of its scene
    #[arg(long)]
    json: bool,
}

pub(crate) async fn run(args: &DemoArgs, database: Database) -> Result<(), CliError> {
    let running = database.start_durable().await?;
    let stage = Stage::set(&running, args.json).await?;
    let shown = show(&stage).await;
    // The schema is dropped in any case. If both steps fail, the first error is returned.
    let struck = stage.strike().await;
    shown.and(struck)
}

async fn show(stage: &Stage) -> Result<(), CliError> {
    let progress = Progress::parts("demo", 5);
    stage.introduce().await?;
    token_bucket(stage).await?;
    stage.next(&progress).await;
    sliding_window(stage).await?;
    stage.next(&progress).await;
    reservation(stage).await?;
    stage.next(&progress).await;
    together(stage).await?;
    stage.next(&progress).await;
    hammer(stage).await
}
