use std::process::ExitCode;

use crate::database::Database;
use crate::demo::stage::Stage;
use crate::demo::{hammer, reservation, sliding_window, together, token_bucket};
use crate::error::CliError;

pub(crate) async fn run(database: Database) -> Result<ExitCode, CliError> {
    let running = database.start_durable().await?;
    let stage = Stage::set(&running).await?;
    let shown = show(&stage).await;
    // The schema is dropped in any case. If both steps fail, the first error is returned.
    let struck = stage.strike().await;
    shown.and(struck)?;
    Ok(ExitCode::SUCCESS)
}

async fn show(stage: &Stage) -> Result<(), CliError> {
    stage.introduce().await?;
    token_bucket::show(stage).await?;
    stage.pause().await;
    sliding_window::show(stage).await?;
    stage.pause().await;
    reservation::show(stage).await?;
    stage.pause().await;
    together::show(stage).await?;
    stage.pause().await;
    hammer::show(stage).await
}
