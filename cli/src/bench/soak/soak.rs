use std::hash::{BuildHasher, RandomState};
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use tokio::task::JoinSet;

use crate::bench::args::BenchArgs;
use crate::bench::bench::version;
use crate::bench::interrupt::interrupt;
use crate::bench::soak::brief::{brief, prune};
use crate::bench::soak::faults::{Signal, hold, signals};
use crate::bench::soak::model::model;
use crate::bench::soak::once::once;
use crate::bench::soak::refill::refill;
use crate::bench::soak::report::{Last, Setting, Summary};
use crate::bench::soak::round::rounds;
use crate::bench::soak::setup::{SLIDING, SoakSetup, TOKENS, WINDOW};
use crate::bench::soak::stats::Stats;
use crate::bench::soak::text;
use crate::bench::soak::units::units;
use crate::bench::soak::watch::Watch;
use crate::bench::work::Dice;
use crate::database::Database;
use crate::error::CliError;
use crate::output;

/// Growth is not judged in shorter runs.
const JUDGED: Duration = Duration::from_secs(60);
/// The time for the calls to end, which have deadlines, and for the last audits, which take some seconds.
const TO_END: Duration = Duration::from_secs(60);

/// The exit code of a soak that found a violation or growth.
const FOUND: u8 = 1;

pub(in crate::bench) async fn run(args: &BenchArgs, time: Duration, database: Database) -> Result<ExitCode, CliError> {
    let running = database.start_durable().await?;
    let setup = Arc::new(SoakSetup::open(&running, args).await?);
    let setting = Setting {
        postgresql: version(setup.audit_pool()).await.unwrap_or_default(),
        private: running.private_source().is_some(),
        schema: running.schema().name().to_owned(),
        soak_seconds: time.as_secs_f64(),
        callers: args.callers,
        lanes: args.lanes,
        durability: args.durability,
        faults: !args.no_faults,
    };
    let soaked = soak(&setup, setting, time, args.json).await;
    // Everything is removed in any case. If both steps fail, the first error is returned.
    let cleared = tokio::select! {
        cleared = setup.clear() => cleared,
        () = interrupt() => Err(CliError::failed(format!("interrupted; {}", setup.left_behind()))),
    };
    if let (Err(_), Err(error)) = (&soaked, &cleared) {
        output::note(error);
    }
    let summary = soaked?;
    cleared?;
    if !summary.passed && !summary.interrupted || summary.end.violations > 0 {
        return Ok(ExitCode::from(FOUND));
    }
    if summary.interrupted {
        return Err(CliError::failed("interrupted"));
    }
    Ok(ExitCode::SUCCESS)
}

async fn soak(setup: &Arc<SoakSetup>, setting: Setting, time: Duration, json: bool) -> Result<Summary, CliError> {
    if !json {
        output::lines(text::heading(&setting))?;
    }
    let stats = Arc::new(Stats::default());
    let mut watch = Watch::new(Arc::clone(setup), Arc::clone(&stats), json);
    let mut tasks = start(setup, &stats, &setting);
    let interrupted = tokio::select! {
        // The tasks run until `stats.stop()`.
        watched = watch.until(time) => { watched?; false }
        () = interrupt() => true,
    };
    stats.stop();
    tokio::select! {
        () = ended(&mut tasks, &stats) => {}
        () = tokio::time::sleep(TO_END) => stats.violated(format!("calls did not end within {TO_END:?}")),
        () = interrupt() => {}
    }
    tasks.shutdown().await;
    let end = watch.look().await?;
    let [memory, table, answers] = watch.growth();
    let growth_is_judged = time >= JUDGED && !interrupted;
    let grows = [memory, table, answers].iter().flatten().any(|growth| !growth.is_flat);
    let counts = stats.count();
    let passed = counts.violations == 0 && !interrupted && !(growth_is_judged && grows);
    let summary = Summary {
        setting,
        end,
        faults_by_kind: counts.by_fault,
        pruned: counts.pruned,
        memory,
        table,
        answers,
        growth_is_judged,
        interrupted,
        passed,
    };
    if json {
        let last = Last { summary };
        output::line(serde_json::to_string(&last).map_err(CliError::failed)?)?;
        return Ok(last.summary);
    }
    output::lines(text::summary(&summary))?;
    Ok(summary)
}

async fn ended(tasks: &mut JoinSet<()>, stats: &Stats) {
    while let Some(joined) = tasks.join_next().await {
        if let Err(error) = joined {
            stats.violated(format!("a part of the load panicked: {error}"));
        }
    }
}

/// Starts the tasks. The callers are divided among all kinds of work.
fn start(setup: &Arc<SoakSetup>, stats: &Arc<Stats>, setting: &Setting) -> JoinSet<()> {
    let mut dice = Dice::new(RandomState::new().hash_one(setting.callers));
    let accounts = SoakSetup::accounts();
    let shares = accounts.len() as u32 + 6;
    let callers = (setting.callers / shares).max(2);
    let (both, faults) = (|| (Arc::clone(setup), Arc::clone(stats)), setting.faults);
    let mut tasks = JoinSet::new();
    for (place, account) in accounts.into_iter().enumerate() {
        let (setup, stats) = both();
        tasks.spawn(rounds(setup, stats, place, account, callers, faults, dice.another()));
    }
    for what in [TOKENS, WINDOW, SLIDING] {
        let (setup, stats) = both();
        tasks.spawn(refill(setup, stats, what, callers, dice.another()));
    }
    for caller in 0..callers {
        let (setup, stats) = both();
        tasks.spawn(brief(setup, stats, caller, dice.another()));
        let (setup, stats) = both();
        tasks.spawn(model(setup, stats, caller, dice.another()));
    }
    let (setup, stats) = both();
    tasks.spawn(once(Arc::clone(&setup), Arc::clone(&stats), dice.another()));
    tasks.spawn(units(Arc::clone(&setup), Arc::clone(&stats), callers, dice.another()));
    tasks.spawn(prune(Arc::clone(&setup), Arc::clone(&stats), dice.another()));
    if faults {
        for signal in [Signal::Terminate, Signal::Cancel] {
            tasks.spawn(signals(Arc::clone(&setup), Arc::clone(&stats), signal, dice.another()));
        }
        tasks.spawn(hold(setup, stats, dice.another()));
    }
    tasks
}
