//! `prune`.

use std::process::ExitCode;

use clap::Args;

use crate::cli::database::Database;
use crate::cli::error::CliError;
use crate::cli::output;
use crate::{Limiter, LimiterConfig, Limits};

#[derive(Args, Debug)]
pub(super) struct PruneArgs {
    /// Print JSON
    #[arg(long)]
    json: bool,
}

pub(super) async fn run(args: PruneArgs, database: Database) -> Result<ExitCode, CliError> {
    let running = database.start().await?;
    let pool = running.ready_pool(1).await?;
    let config = LimiterConfig { schema: running.schema().clone(), ..LimiterConfig::default() };
    let result = Limiter::with_config(pool.clone(), Limits::new(), config).prune().await;
    pool.close().await;
    output::line(match (result?, args.json) {
        (rows, true) => format!("{{\"ok\": true, \"rows\": {rows}}}"),
        (1, false) => "done, 1 row removed".to_owned(),
        (rows, false) => format!("done, {rows} rows removed"),
    })?;
    Ok(ExitCode::SUCCESS)
}
