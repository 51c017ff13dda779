use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;
use std::time::Duration;

use fastrand::Rng;
use pg_limiter::Durability;
use tokio::task::JoinSet;

use super::Failure;
use super::brief::{brief, prune};
use super::database::Database;
use super::faults::{Signal, hold, signals};
use super::gate::gate;
use super::model::model;
use super::once::once;
use super::options::Options;
use super::refill::refill;
use super::report::{Event, Setting, Summary};
use super::round::rounds;
use super::setup::{SLIDING, SoakSetup, TOKENS, WINDOW};
use super::slots::slots;
use super::stats::Stats;
use super::units::units;
use super::watch::Watch;

/// Growth is not judged in shorter runs.
const JUDGED: Duration = Duration::from_secs(60);
/// The time for the calls to end, which have deadlines, and for the last audits, which take some seconds.
const TO_END: Duration = Duration::from_secs(60);

/// Makes calls until the time is up or `interrupt` completes, and removes everything that it created. Calls `show` for
/// each line of the output.
pub(crate) async fn run(
    options: &Options,
    interrupt: impl Future<Output = ()> + Send,
    show: impl Fn(Event<'_>) + Send + Sync + 'static,
) -> Result<Summary, Failure> {
    let stats = Arc::new(Stats::new(show));
    let database = Database::open(options, &stats).await?;
    let setup = Arc::new(SoakSetup::open(&database, options, &stats).await?);
    let setting = Setting {
        postgresql: version(setup.audit_pool()).await.unwrap_or_default(),
        private: database.is_private(),
        schema: options.schema.name().to_owned(),
        seconds: options.time.as_secs_f64(),
        callers: options.callers,
        lanes: options.lanes,
        durability: if options.durability == Durability::Relaxed { "relaxed" } else { "full" },
        faults: options.faults,
    };
    let summary = soak(&setup, &stats, setting, options.time, interrupt).await;
    stats.show(Event::Summary(&summary));
    setup.clear(&stats).await?;
    Ok(summary)
}

/// The server's version without a distribution's suffix: `18.4`.
async fn version(pool: &sqlx::PgPool) -> Result<String, sqlx::Error> {
    let version: String = sqlx::query_scalar("SHOW server_version").fetch_one(pool).await?;
    Ok(version.split(' ').next().unwrap_or_default().to_owned())
}

async fn soak(
    setup: &Arc<SoakSetup>,
    stats: &Arc<Stats>,
    setting: Setting,
    time: Duration,
    interrupt: impl Future<Output = ()> + Send,
) -> Summary {
    stats.show(Event::Setting(&setting));
    let mut watch = Watch::new(Arc::clone(setup), Arc::clone(stats));
    let mut tasks = start(setup, stats, &setting);
    let interrupted = tokio::select! {
        // The tasks run until `stats.stop()`.
        () = watch.until(time) => false,
        () = interrupt => true,
    };
    stats.stop();
    tokio::select! {
        () = ended(&mut tasks, stats) => {}
        () = tokio::time::sleep(TO_END) => stats.violated(format!("calls did not end within {TO_END:?}")),
    }
    tasks.shutdown().await;
    let end = watch.look().await;
    let [memory, table, answers] = watch.growth();
    let growth_is_judged = time >= JUDGED && !interrupted;
    let grows = [memory, table, answers].iter().flatten().any(|growth| !growth.is_flat);
    let counts = stats.count();
    let passed = counts.violations == 0 && !interrupted && !(growth_is_judged && grows);
    Summary {
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
    }
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
    let mut dice = Rng::with_seed(RandomState::new().hash_one(setting.callers));
    let accounts = SoakSetup::accounts();
    let shares = accounts.len() as u32 + 8;
    let callers = (setting.callers / shares).max(2);
    let (both, faults) = (|| (Arc::clone(setup), Arc::clone(stats)), setting.faults);
    let mut tasks = JoinSet::new();
    for (place, account) in accounts.into_iter().enumerate() {
        let (setup, stats) = both();
        tasks.spawn(rounds(setup, stats, place, account, callers, faults, dice.fork()));
    }
    for what in [TOKENS, WINDOW, SLIDING] {
        let (setup, stats) = both();
        tasks.spawn(refill(setup, stats, what, callers, dice.fork()));
    }
    for caller in 0..callers {
        let (setup, stats) = both();
        tasks.spawn(brief(setup, stats, caller, dice.fork()));
        let (setup, stats) = both();
        tasks.spawn(model(setup, stats, caller, dice.fork()));
        let (setup, stats) = both();
        tasks.spawn(gate(setup, stats, caller, dice.fork()));
    }
    let (setup, stats) = both();
    tasks.spawn(once(Arc::clone(&setup), Arc::clone(&stats), dice.fork()));
    tasks.spawn(slots(Arc::clone(&setup), Arc::clone(&stats), callers, dice.fork()));
    tasks.spawn(units(Arc::clone(&setup), Arc::clone(&stats), callers, dice.fork()));
    tasks.spawn(prune(Arc::clone(&setup), Arc::clone(&stats), dice.fork()));
    if faults {
        for signal in [Signal::Terminate, Signal::Cancel] {
            tasks.spawn(signals(Arc::clone(&setup), Arc::clone(&stats), signal, dice.fork()));
        }
        tasks.spawn(hold(setup, stats, dice.fork()));
    }
    tasks
}
