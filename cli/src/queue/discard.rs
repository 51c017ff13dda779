use std::process::ExitCode;

use clap::Args;
use serde_json::json;

use crate::database::Database;
use crate::error::CliError;
use crate::progress::Progress;
use crate::queue::each::{Became, each};
use crate::queue::queues::{Queues, with_queues};
use crate::{json, output, text};
use pg_limiter::Limits;
use pg_limiter::queue::{JobInfo, JobState};

#[derive(Args, Debug)]
pub(crate) struct DiscardArgs {
    /// Ids of the jobs to discard, which must be dead
    #[arg(value_name = "ID", required_unless_present = "queue")]
    ids: Vec<i64>,
    /// Discard all dead jobs of this queue; with ids, only those of them that are in this queue
    #[arg(long, value_name = "QUEUE")]
    queue: Option<String>,
    /// Print JSON, one object per line
    #[arg(long)]
    json: bool,
}

pub(super) async fn run(args: DiscardArgs, database: Database) -> Result<ExitCode, CliError> {
    with_queues(database, Limits::new(), async |queues| match &args.queue {
        Some(queue) if args.ids.is_empty() => all(&queues, queue, args.json).await,
        queue => {
            let act = async |job| discard(&queues, job, queue.as_deref()).await;
            each(&queues, "discarding jobs", &args.ids, args.json, act).await
        }
    })
    .await
}

async fn all(queues: &Queues, queue: &str, as_json: bool) -> Result<ExitCode, CliError> {
    let progress = Progress::of("discarding the dead jobs");
    queues.must_have(queue).await?;
    let jobs = queues.queue(queue)?.prune_dead(std::time::Duration::ZERO).await?;
    drop(progress);
    output::line(match (jobs, as_json) {
        (jobs, true) => json::line(&json!({"ok": true, "jobs": jobs})),
        (0, false) => format!("no dead jobs in the queue \"{}\"", text::escaped(queue)),
        (1, false) => "1 dead job discarded".to_owned(),
        (jobs, false) => format!("{jobs} dead jobs discarded"),
    })?;
    Ok(ExitCode::SUCCESS)
}

async fn discard(queues: &Queues, job: JobInfo, queue: Option<&str>) -> Result<Became, CliError> {
    if queue.is_some_and(|queue| queue != job.queue) {
        let why = format!("job {} is in the queue \"{}\", not in that of --queue", job.id, text::escaped(&job.queue));
        return Ok(Became::refused(job.state, why));
    }
    let not_dead = |how: &str| {
        format!("job {} is {how}; only dead jobs can be discarded; cancel jobs that have not started", job.id)
    };
    if job.state != JobState::Dead {
        return Ok(Became::refused(job.state, not_dead(job.state.as_str())));
    }
    if queues.queue(&job.queue)?.discard(&[job.id]).await? == 0 {
        return Ok(Became::Refused { state: None, why: not_dead("no longer dead") });
    }
    Ok(Became::Done("is discarded".to_owned(), ("was", "dead".to_owned())))
}
