use std::process::ExitCode;

use clap::Args;
use serde_json::json;

use crate::database::Database;
use crate::error::CliError;
use crate::queue::queues::with_queues;
use crate::{json, output, text};
use pg_limiter::Limits;

#[derive(Args, Debug)]
pub(crate) struct ResumeArgs {
    /// The queue
    queue: String,
    /// The group, as `queue ls` shows it
    group: String,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

pub(super) async fn run(args: ResumeArgs, database: Database) -> Result<ExitCode, CliError> {
    let ResumeArgs { queue, group, json } = args;
    let resumed = with_queues(database, Limits::new(), async |queues| {
        queues.must_have(&queue).await?;
        Ok(queues.queue(&queue)?.resume(group.as_str()).await?)
    });
    let resumed = resumed.await?;
    output::line(match (resumed, json) {
        (resumed, true) => json::line(&json!({"ok": true, "queue": queue, "group": group, "resumed": resumed})),
        (true, false) => format!("the group \"{}\" starts its jobs again", text::escaped(&group)),
        (false, false) => format!("the group \"{}\" does not wait", text::escaped(&group)),
    })?;
    Ok(ExitCode::SUCCESS)
}
