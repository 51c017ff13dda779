use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;
use std::time::Duration;

use fastrand::Rng;
use serde::Serialize;
use sqlx::PgPool;

use crate::bench::args::BenchArgs;
use crate::database::Running;
use crate::error::CliError;
use crate::text::grouped;
use pg_limiter::{Isolation, Item, Limit, Limiter, LimiterConfig, Limits, RetryPolicy};

/// How much longer than planned the measurements may take. Soon after that, the rows of a killed run are idle.
const OVERTIME: Duration = Duration::from_secs(15);
const TO_CLEAR: Duration = Duration::from_secs(10);

/// The limits that are measured. Their names are random, so their rows belong to this run only.
pub(super) struct BenchSetup {
    pub(super) pool: PgPool,
    /// The name of a limit that never denies. Its rows are idle immediately.
    open: String,
    /// The name of a limit whose balance stays negative for longer than all measurements take.
    owing: String,
    /// How long the balance of `owing` stays negative.
    owed: Duration,
    /// One limiter for each isolation level, with the name of the level.
    pub(super) limiters: Vec<(&'static str, Limiter)>,
    clearing: Limiter,
}

impl BenchSetup {
    /// Prepares the limiters. This writes nothing, but verifies that rows can be removed again.
    pub(super) async fn open(running: &Running, args: &BenchArgs) -> Result<Self, CliError> {
        let pool = running.ready_pool(u32::from(args.lanes) + 1).await?;
        // A random name cannot collide with an existing limit.
        let random = RandomState::new().hash_one(std::process::id());
        let [open, owing] = ["open", "owing"].map(|what| format!("pg-limiter bench {random:016x} {what}"));
        let mut config = LimiterConfig::default();
        config.schema = running.schema().clone();
        config.durability = args.durability();
        config.lanes = args.lanes.into();
        let second = Duration::from_secs(1);
        let limits = Limits::new()
            .define(&open, Limit::token_bucket(1e12, second))
            .and_then(|limits| limits.define(&owing, Limit::token_bucket(1, second)))
            .map_err(CliError::usage)?;
        let limiter = |config| Limiter::with_config(pool.clone(), limits.clone(), config);
        let with = |(name, isolation)| {
            let mut config = config.clone();
            config.isolation = isolation;
            (name, limiter(config))
        };
        let limiters: Vec<_> = args.isolations().map(with).collect();
        let owed = limiters.iter().fold(OVERTIME, |owed, _| owed + args.seconds);
        config.isolation = Isolation::ReadCommitted;
        config.retry = RetryPolicy::default();
        config.retry.deadline = TO_CLEAR;
        let clearing = limiter(config);
        let setup = Self { open, owing, owed, limiters, clearing, pool };
        setup.forget().await?;
        Ok(setup)
    }

    /// Returns the keys for this work, after setting their balances up for it.
    pub(super) async fn target(&self, work: Work) -> Result<Target, CliError> {
        if work != Work::AllDenied {
            return Ok(Target::new(&self.open, work));
        }
        let target = Target::new(&self.owing, work);
        self.clearing.reset_all_keys(&self.owing).await?;
        for item in target.each() {
            self.clearing.charge(item.count(self.owed.as_secs_f64())).await?;
        }
        Ok(target)
    }

    /// Waits for calls in flight, and removes every row.
    pub(super) async fn clear(&self) -> Result<(), CliError> {
        for (_, limiter) in &self.limiters {
            limiter.close().await;
        }
        let forgotten = self.forget().await;
        self.clearing.close().await;
        self.pool.close().await;
        forgotten.map_err(|error| CliError::failed(format!("{error}\n{}", self.left_behind())))
    }

    /// The message to the user if the rows could not be removed.
    pub(super) fn left_behind(&self) -> String {
        let Self { open, owing, .. } = self;
        format!(
            "rows of the limits \"{open}\" and \"{owing}\" may remain; within two minutes they are idle, and `prune` removes them"
        )
    }

    async fn forget(&self) -> Result<(), CliError> {
        for name in [&self.open, &self.owing] {
            self.clearing.reset_all_keys(name).await?;
        }
        Ok(())
    }
}

const MANY: usize = 10_000;

/// The calls of one measurement.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum Work {
    LoneCaller,
    OneKey,
    ManyKeys,
    AllDenied,
}

impl Work {
    pub(super) const ALL: [Self; 4] = [Self::LoneCaller, Self::OneKey, Self::ManyKeys, Self::AllDenied];

    pub(super) const fn callers(self, callers: u32) -> u32 {
        if matches!(self, Self::LoneCaller) { 1 } else { callers }
    }

    pub(super) const fn keys(self) -> usize {
        if matches!(self, Self::ManyKeys) { MANY } else { 1 }
    }

    pub(super) fn title(self, callers: u32) -> String {
        let callers = if callers == 1 { "1 caller".to_owned() } else { format!("{} callers", grouped(callers.into())) };
        match self {
            Self::LoneCaller => "a lone caller".to_owned(),
            Self::OneKey => format!("{callers}, one key"),
            Self::ManyKeys => format!("{callers}, {} keys", grouped(MANY as u64)),
            Self::AllDenied => format!("{callers}, all denied"),
        }
    }
}

/// The limit and the keys of the calls.
pub(super) struct Target {
    limit: Arc<str>,
    keys: Vec<Arc<str>>,
}

impl Target {
    /// Each kind of work has its own keys.
    pub(super) fn new(limit: &str, work: Work) -> Self {
        let keys = (0..work.keys()).map(|nth| format!("{work:?} {nth}").into()).collect();
        Self { limit: limit.into(), keys }
    }

    /// Returns each key once.
    pub(super) fn each(&self) -> impl Iterator<Item = Item> {
        self.keys.iter().map(|key| self.item(key))
    }

    /// Returns a random key. All keys are equally likely.
    pub(super) fn any(&self, dice: &mut Rng) -> Item {
        self.item(&self.keys[dice.usize(..self.keys.len())])
    }

    fn item(&self, key: &Arc<str>) -> Item {
        Item::new(Arc::clone(&self.limit), Arc::clone(key))
    }
}
