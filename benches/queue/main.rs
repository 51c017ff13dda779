//! The queue beside a bare one: `cargo bench --bench queue --features embedded`.
//!
//! The bare queue is a table, an INSERT, and FOR UPDATE SKIP LOCKED, without limits, groups, leases or retries: the least
//! that a queue in PostgreSQL can do. Both are measured in every round, in turn, on one durable server; a ratio is the
//! median of the ratios of the rounds.
//!
//! `-- --help` tells the options.

mod bare;
mod options;
mod ours;
mod report;
mod site;
mod timed;

use crate::options::Options;
use crate::report::Report;
use crate::site::Site;

type Failure = Box<dyn std::error::Error + Send + Sync>;

#[tokio::main]
async fn main() -> Result<(), Failure> {
    let Some(options) = Options::read(std::env::args().skip(1))? else {
        println!("{}", options::HELP);
        return Ok(());
    };
    let site = Site::set().await?;
    let mut report = Report::default();
    for round in 1..=options.rounds {
        eprintln!("round {round} of {}", options.rounds);
        for (work, groups, at_once) in
            [("enqueue", 1000, 1), ("enqueue, one group", 1, 1), ("enqueue 100 at once", 1000, 100)]
        {
            report.pair(
                work,
                bare::enqueue(&site, &options, at_once).await?,
                ours::enqueue(&site, &options, groups, at_once).await?,
            );
            site.clear().await?;
        }
        report.pair(
            "enqueue in a transaction",
            bare::enqueue_within(&site, &options).await?,
            ours::enqueue_within(&site, &options).await?,
        );
        site.clear().await?;
        for (work, groups) in [("work", 1000), ("work, one group", 1)] {
            let jobs = options.jobs;
            bare::fill(&site, jobs).await?;
            let bare = bare::work(&site, jobs).await?;
            ours::fill(&site, jobs, groups).await?;
            report.pair(work, bare, ours::work(&site, jobs).await?);
            site.clear().await?;
        }
        report.delays(ours::delays(&site, &options).await?);
        site.clear().await?;
    }
    report.print(&site, &options);
    Ok(())
}
