use std::process::ExitCode;

use clap::Args;

use crate::database::Database;
use crate::error::CliError;
use crate::output;
use crate::progress::Progress;
use crate::queue::queues::{Queues, with_queues};
use crate::queue::{groups, jobs};
use pg_limiter::Limits;
use pg_limiter::queue::{JobFilter, JobState};

const JOBS_LISTED: u32 = 100;

#[derive(Args, Debug)]
pub(crate) struct LsArgs {
    /// List only this queue
    queue: Option<String>,
    /// List the jobs in this state: scheduled, available, running, done, dead or cancelled
    #[arg(long)]
    state: Option<JobState>,
    /// List the jobs of this group
    #[arg(long, value_name = "KEY")]
    group: Option<String>,
    /// List jobs, ordered by the time at which they run
    #[arg(long)]
    jobs: bool,
    /// Most jobs or groups to list [default: 100 jobs, all groups]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    limit: Option<u32>,
    /// Print JSON, one object per line
    #[arg(long)]
    json: bool,
}

pub(super) async fn run(args: LsArgs, database: Database) -> Result<ExitCode, CliError> {
    let lines = with_queues(database, Limits::new(), async |queues| {
        let _progress = Progress::of("reading the queues");
        if args.jobs || args.state.is_some() || args.group.is_some() {
            list_jobs(&args, &queues).await
        } else {
            list_groups(&args, &queues).await
        }
    });
    let lines = lines.await?;
    if lines.is_empty() && !args.json {
        output::line("no jobs")?;
    }
    output::lines(lines)?;
    Ok(ExitCode::SUCCESS)
}

async fn list_groups(args: &LsArgs, queues: &Queues) -> Result<Vec<String>, CliError> {
    let mut listed = queues.all.group_counts(args.queue.as_deref()).await?;
    if let (true, Some(queue)) = (listed.is_empty(), &args.queue) {
        return Err(queues.no_such(queue).await);
    }
    if let Some(most) = args.limit {
        cut(&mut listed, most, "groups");
    }
    Ok(if args.json { listed.iter().map(groups::json).collect() } else { groups::table(&listed) })
}

async fn list_jobs(args: &LsArgs, queues: &Queues) -> Result<Vec<String>, CliError> {
    let mut filter = JobFilter::default();
    filter.queue.clone_from(&args.queue);
    filter.group.clone_from(&args.group);
    filter.state = args.state;
    let most = args.limit.unwrap_or(JOBS_LISTED);
    // One more than is listed, to see if there are more.
    let mut listed = queues.all.jobs(&filter, most.saturating_add(1)).await?;
    if let (true, Some(queue)) = (listed.is_empty(), &args.queue) {
        queues.must_have(queue).await?;
    }
    cut(&mut listed, most, "jobs");
    Ok(if args.json { listed.iter().map(jobs::json).collect::<Result<_, _>>()? } else { jobs::table(&listed) })
}

fn cut<T>(listed: &mut Vec<T>, most: u32, what: &str) {
    let most = usize::try_from(most).unwrap_or(usize::MAX);
    if listed.len() > most {
        listed.truncate(most);
        output::note(format!("the list ends after {most}: raise --limit to list more {what}"));
    }
}
