//! Compares pg-limiter with its peers, in one run on its own servers: `cargo bench --bench peers --features embedded`.
//!
//! Every round measures all peers in turn, so that a machine that becomes slower or faster affects all of them. The figures
//! are medians over the rounds, and a ratio is the median of the ratios of the rounds. PostgreSQL is durable, as in
//! production. Without `redis-server` in `PATH` and without `REDIS_URL`, Redis is skipped.
//!
//! `-- --help` lists the options.

mod allowance;
mod case;
mod cpu;
mod first_touch;
mod gateway;
mod gateway_peer;
mod groups;
mod histogram;
mod json;
mod keyed;
mod keys;
mod limiters;
mod load;
mod names;
mod old_snapshot;
mod options;
mod peer;
mod postgres;
mod processes;
mod redis_peer;
mod redis_server;
mod results;
mod rows;
mod sliding;
mod stage;
#[path = "../common/steal.rs"]
mod steal;
mod sums;
mod sums_peer;
mod table;
mod table_size;
mod targets;
mod team;
mod transactions;
mod windows;

use std::process::ExitCode;

use crate::case::Case;
use crate::options::Options;
use crate::results::Results;
use crate::stage::Stage;

type Failure = Box<dyn std::error::Error + Send + Sync>;

#[tokio::main]
async fn main() -> Result<ExitCode, Failure> {
    if let Some(order) = team::Order::of_this_process()? {
        order.obey().await?;
        return Ok(ExitCode::SUCCESS);
    }
    let Some(options) = Options::read(std::env::args().skip(1))? else {
        println!("{}", options::HELP);
        return Ok(ExitCode::SUCCESS);
    };
    let stage = Stage::set(options).await?;
    let mut results = Results::default();
    let cases = cases(&stage).await?;
    for round in 1..=stage.options.rounds {
        for case in &cases {
            eprintln!("round {round} of {}: {}", stage.options.rounds, case.id);
            results.add(round, &case.id, case.measure(&stage).await);
        }
    }
    if stage.options.wants(names::TABLE_SIZE) {
        table_size::measure(&stage, &mut results).await;
    }
    if stage.options.wants(names::OLD_SNAPSHOT) {
        old_snapshot::measure(&stage, &mut results).await;
    }
    stage.clear().await?;
    if stage.options.json {
        println!("{:#}", json::of(&stage, &results));
    } else {
        table::print(&stage, &results);
    }
    for failure in &results.failures {
        eprintln!("failed: {failure}");
    }
    Ok(if results.failures.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// The measurements of each round, in their order.
async fn cases(stage: &Stage) -> Result<Vec<Case>, Failure> {
    let mut cases = keyed::cases(stage).await?;
    cases.extend(groups::cases(stage).await?);
    cases.extend(windows::cases(stage).await?);
    cases.extend(gateway::cases(stage).await?);
    cases.extend(allowance::cases(stage).await?);
    cases.extend(sliding::cases(stage).await?);
    cases.extend(transactions::cases(stage).await?);
    cases.extend(processes::cases(stage));
    cases.extend(first_touch::cases(stage).await?);
    cases.extend(rows::cases(stage).await?);
    cases.extend(sums::cases(stage).await?);
    Ok(cases)
}
