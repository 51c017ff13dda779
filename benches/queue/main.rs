//! Compares the queue with a bare queue: `cargo bench --bench queue --features embedded`.
//!
//! The bare queue is a table, an INSERT, and FOR UPDATE SKIP LOCKED, without limits, groups, leases or retries: the least
//! that a queue in PostgreSQL can do. Every round measures both in turn, on one durable server. A ratio is the median of the
//! ratios of the rounds.
//!
//! `-- --help` lists the options.

mod bare;
mod churn;
mod names;
mod options;
mod ours;
mod report;
#[path = "../common/steal.rs"]
mod steal;
mod tables;
mod timed;

use crate::names::{DELAYS, ENQUEUE_100, ENQUEUE_ONE_GROUP, ENQUEUE_TRANSACTION, WORK, WORK_ONE_GROUP, WORKS};
use crate::options::Options;
use crate::report::Report;
use crate::steal::CpuTimes;
use crate::tables::QueueTables;

type Failure = Box<dyn std::error::Error + Send + Sync>;

#[tokio::main]
async fn main() -> Result<(), Failure> {
    let Some(options) = Options::read(std::env::args().skip(1))? else {
        println!("{}", options::HELP);
        return Ok(());
    };
    let mut tables = QueueTables::set().await?;
    ours::fill(&tables, 1, 1).await?;
    bare::fill(&tables, 1).await?;
    tables.pad().await?;
    let mut report = Report::default();
    if options.wants_churn() {
        report.churn = Some(churn::churn(&tables, &options).await?);
        tables.clear().await?;
    }
    for round in 1..=options.rounds {
        eprintln!("round {round} of {}", options.rounds);
        for work in WORKS.into_iter().filter(|work| options.wants(work)) {
            let before = CpuTimes::now();
            match pair(&tables, &options, work).await? {
                Some((bare, ours)) => report.pair(work, bare, ours, CpuTimes::stolen_since(before)),
                None => report.delays(ours::delays(&tables, &options).await?),
            }
            tables.clear().await?;
        }
    }
    if options.json {
        println!("{:#}", report.json(&tables, &options));
    } else {
        report.print(&tables, &options);
    }
    Ok(())
}

/// Returns the rates of the bare queue and of pg-limiter's, measured one right after the other. Returns `None` for delays,
/// which the bare queue does not have.
async fn pair(tables: &QueueTables, options: &Options, work: &str) -> Result<Option<(f64, f64)>, Failure> {
    let (groups, at_once) = match work {
        ENQUEUE_ONE_GROUP | WORK_ONE_GROUP => (1, 1),
        ENQUEUE_100 => (1000, 100),
        _ => (1000, 1),
    };
    let jobs = options.jobs;
    Ok(match work {
        DELAYS => None,
        ENQUEUE_TRANSACTION => {
            Some((bare::enqueue_within(tables, options).await?, ours::enqueue_within(tables, options).await?))
        }
        WORK | WORK_ONE_GROUP => {
            bare::fill(tables, jobs).await?;
            let bare = bare::work(tables, jobs).await?;
            ours::fill(tables, jobs, groups).await?;
            Some((bare, ours::work(tables, jobs).await?))
        }
        _ => Some((
            bare::enqueue(tables, options, at_once).await?,
            ours::enqueue(tables, options, groups, at_once).await?,
        )),
    })
}
