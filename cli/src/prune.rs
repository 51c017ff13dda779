//! The command `prune`.

use std::time::Duration;

use clap::Args;
use serde_json::json;

use crate::database::Database;
use crate::error::CliError;
use crate::progress::Progress;
use crate::text::many;
use crate::{json, output};
use pg_limiter::queue::Queues;
use pg_limiter::{Error, Limiter, Limits};

#[derive(Args, Debug)]
pub(super) struct PruneArgs {
    /// Also remove jobs, of all queues, that have been dead for at least this long, such as 30d
    #[arg(long, value_name = "LENGTH", value_parser = humantime::parse_duration)]
    dead_older_than: Option<Duration>,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

pub(super) async fn run(args: PruneArgs, database: Database) -> Result<(), CliError> {
    let running = database.start().await?;
    let limiter = running.limiter(Limits::new(), None).await?;
    let result = prune(&limiter, args.dead_older_than).await;
    limiter.pool().close().await;
    output::line(match (result?, args.json) {
        ((rows, None), true) => json::line(&json!({"ok": true, "rows": rows})),
        ((rows, Some(jobs)), true) => json::line(&json!({"ok": true, "rows": rows, "dead_jobs": jobs})),
        ((rows, None), false) => format!("done, {} removed", many(rows, "row")),
        ((rows, Some(jobs)), false) => format!("done, {} and {} removed", many(rows, "row"), many(jobs, "dead job")),
    })
}

/// Returns the number of rows removed, and of dead jobs if they are pruned, too.
async fn prune(limiter: &Limiter, dead_for: Option<Duration>) -> Result<(u64, Option<u64>), Error> {
    let progress = Progress::of("removing the rows of idle keys");
    let rows = limiter.prune().await?;
    let Some(dead_for) = dead_for else { return Ok((rows, None)) };
    progress.now("removing dead jobs");
    Ok((rows, Some(Queues::new(limiter).prune_dead(dead_for).await?)))
}
