use std::hash::{BuildHasher, RandomState};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use fastrand::Rng;
use sqlx::postgres::{PgConnectOptions, PgPoolOptions};
use sqlx::{AssertSqlSafe, PgPool};

use pg_limiter::{
    Calendar, Call, Connections, Error, Isolation, Item, Limit, Limiter, LimiterConfig, Limits, RetryPolicy,
};

use super::Failure;
use super::database::Database;
use super::options::Options;
use super::stats::Stats;

/// A period so long that almost nothing is refilled during a soak.
pub(super) const CENTURY: Duration = Duration::from_secs(36_525 * 86_400);
/// How long the answers to idempotency keys are kept.
pub(super) const KEEP: Duration = Duration::from_secs(20);
const TO_CLEAR: Duration = Duration::from_secs(10);
const POOL: u32 = 12;
/// The deadline of the audits, which is long because they must succeed.
const TO_AUDIT: Duration = Duration::from_secs(30);

/// Limits that are always taken together.
#[derive(Clone, Copy)]
pub(super) struct Account {
    pub(super) name: &'static str,
    pub(super) limits: &'static [&'static str],
    pub(super) reserves: bool,
    /// The tokens that every call leaves behind.
    pub(super) leave: u32,
}

/// The limits, idempotency keys and table of this soak, and its connections. A random name keeps them apart from all others.
pub(super) struct SoakSetup {
    name: String,
    limits: Limits,
    /// Four limiters, as if of four processes: each kind of connection, at each isolation level.
    limiters: Vec<Limiter>,
    /// Two limiters, as if of two more processes. No other caller locks their rows, so they are fast and create many rows.
    quiet: Vec<Limiter>,
    pools: Vec<PgPool>,
    /// Reads the balances for the audits. Its connections have no faults.
    audit: Limiter,
    /// The table that units of work write to; `None` if the role may not create one.
    table: Option<String>,
    schema: String,
    /// The calls that other callers are making now.
    hot: Mutex<Vec<Call>>,
    options: PgConnectOptions,
}

/// The names of the limits, without their common prefix.
pub(super) const TOKENS: &str = "tokens";
pub(super) const WINDOW: &str = "window";
pub(super) const SLIDING: &str = "sliding";
pub(super) const SLOTS: &str = "slots";
/// The limit of the tokens that are taken together with slots.
pub(super) const WITH_SLOTS: &str = "with slots";
pub(super) const GATE: &str = "gate";
/// The limit of the tokens that calls take if the gate lets them.
pub(super) const BEHIND_GATE: &str = "behind gate";

const LIMITS: [&str; 22] = [
    "plain",
    "sharded",
    "reserved",
    "fixed",
    "slid",
    "calendar",
    "first",
    "second",
    "third",
    "left",
    "spread",
    "units",
    "once",
    "model",
    TOKENS,
    WINDOW,
    SLIDING,
    "brief",
    SLOTS,
    WITH_SLOTS,
    GATE,
    BEHIND_GATE,
];

impl SoakSetup {
    /// Prepares the soak. This writes nothing but an empty table, and verifies that rows can be removed again.
    pub(super) async fn open(database: &Database, options: &Options, stats: &Stats) -> Result<Self, Failure> {
        // A random name cannot collide with an existing limit.
        let name = format!("pg-limiter soak {:016x}", RandomState::new().hash_one(std::process::id()));
        let limits = limits(&name)?;
        let load = format!("{name} load");
        let pool = |application: &str| {
            let pool = PgPoolOptions::new().max_connections(POOL).acquire_timeout(Duration::from_secs(5));
            pool.connect_lazy_with(database.options.clone().application_name(application))
        };
        let mut config = LimiterConfig::default();
        config.schema = options.schema.clone();
        config.durability = options.durability;
        config.lanes = options.lanes;
        config.keep_answers = KEEP;
        let pools = vec![pool(&load), pool(&load)];
        let ways = [
            (0, Connections::Own, Isolation::Serializable),
            (1, Connections::Pool, Isolation::Serializable),
            (1, Connections::Own, Isolation::ReadCommitted),
            (0, Connections::Pool, Isolation::ReadCommitted),
        ];
        let with = |(nth, connections, isolation): (usize, _, _)| {
            let mut config = config.clone();
            config.connections = connections;
            config.isolation = isolation;
            Limiter::with_config(pools[nth].clone(), limits.clone(), config)
        };
        let limiters = ways.into_iter().map(with).collect();
        let quiet = ways.into_iter().filter(|(_, connections, _)| *connections == Connections::Own).map(with).collect();
        config.connections = Connections::Pool;
        config.retry = RetryPolicy::default();
        (config.retry.deadline, config.retry.max_attempts) = (TO_AUDIT, 1000);
        let audit = Limiter::with_config(pool(&format!("{name} audit")), limits.clone(), config);
        let schema = options.schema.quoted();
        let options = database.options.clone();
        let mut setup =
            Self { name, limits, limiters, quiet, pools, audit, table: None, schema, hot: Mutex::default(), options };
        setup.forget().await?;
        setup.create(stats).await;
        Ok(setup)
    }

    async fn create(&mut self, stats: &Stats) {
        let table = format!("{}.\"{}\"", self.schema, self.name);
        let sql = format!("CREATE TABLE {table} (round bigint NOT NULL)");
        match sqlx::raw_sql(AssertSqlSafe(sql)).execute(self.audit_pool()).await {
            Ok(_) => self.table = Some(table),
            Err(error) => {
                stats.note(&format!(
                    "units of work write no rows, because no table can be created: {}",
                    Error::database_message(&error)
                ));
            }
        }
    }

    /// The prefix of every name that this soak creates.
    pub(super) fn name(&self) -> &str {
        &self.name
    }

    pub(super) fn limit(&self, what: &str) -> String {
        format!("{} {what}", self.name)
    }

    pub(super) fn item(&self, what: &str, key: &str) -> Item {
        Item::new(self.limit(what), key)
    }

    pub(super) fn of(&self, what: &str) -> Option<&Limit> {
        self.limits.get(&self.limit(what))
    }

    pub(super) fn any_limiter(&self, dice: &mut Rng) -> &Limiter {
        &self.limiters[dice.usize(..self.limiters.len())]
    }

    pub(super) fn any_quiet_limiter(&self, dice: &mut Rng) -> &Limiter {
        &self.quiet[dice.usize(..self.quiet.len())]
    }

    pub(super) fn any_pool(&self, dice: &mut Rng) -> &PgPool {
        &self.pools[dice.usize(..self.pools.len())]
    }

    pub(super) const fn audit(&self) -> &Limiter {
        &self.audit
    }

    pub(super) fn audit_pool(&self) -> &PgPool {
        self.audit.pool()
    }

    pub(super) fn table(&self) -> Option<&str> {
        self.table.as_deref()
    }

    /// The schema, quoted as an identifier.
    pub(super) fn schema(&self) -> &str {
        &self.schema
    }

    pub(super) fn application(&self) -> String {
        format!("{} load", self.name)
    }

    pub(super) fn options_for_faults(&self) -> PgConnectOptions {
        self.options.clone().application_name(&format!("{} faults", self.name))
    }

    pub(super) fn retries(&self) -> u64 {
        self.limiters.iter().chain(&self.quiet).map(Limiter::retries).sum()
    }

    /// Records the call that the callers of an account are making now.
    pub(super) fn is_hot(&self, place: usize, call: Call) {
        let mut hot = self.hot.lock().unwrap_or_else(PoisonError::into_inner);
        if place >= hot.len() {
            hot.push(call);
        } else {
            hot[place] = call;
        }
    }

    pub(super) fn any_hot(&self, dice: &mut Rng) -> Option<Call> {
        let hot = self.hot.lock().unwrap_or_else(PoisonError::into_inner);
        if hot.is_empty() { None } else { Some(hot[dice.usize(..hot.len())].clone()) }
    }

    /// The accounts of the rounds.
    pub(super) fn accounts() -> Vec<Account> {
        let account = |name, limits| Account { name, limits, reserves: false, leave: 0 };
        vec![
            account("plain", &["plain"]),
            account("sharded", &["sharded"]),
            Account { reserves: true, ..account("reserved", &["reserved"]) },
            account("fixed", &["fixed"]),
            account("slid", &["slid"]),
            account("calendar", &["calendar"]),
            account("group", &["first", "second", "third"]),
            Account { leave: 100, ..account("left", &["left", "spread"]) },
        ]
    }

    /// Waits for calls in flight, and removes everything.
    pub(super) async fn clear(&self, stats: &Stats) -> Result<(), Failure> {
        for limiter in self.limiters.iter().chain(&self.quiet) {
            limiter.close().await;
        }
        for pool in &self.pools {
            // Connections of dropped futures may never return to the pool, so the wait is bounded.
            let _ = tokio::time::timeout(TO_CLEAR, pool.close()).await;
        }
        self.wait_for_backends().await;
        let mut cleared = self.forget().await.map_err(Failure::from);
        cleared = cleared.and(self.forget_answers(stats).await);
        if let Some(table) = &self.table {
            let sql = format!("DROP TABLE IF EXISTS {table}");
            let dropped = sqlx::raw_sql(AssertSqlSafe(sql)).execute(self.audit_pool()).await;
            cleared = cleared.and(dropped.map(|_| ()).map_err(Failure::from));
        }
        self.audit.close().await;
        self.audit_pool().close().await;
        cleared.map_err(|error| format!("{error}\n{}", self.left_behind()).into())
    }

    /// Waits until the server has ended the soak's sessions: a statement of a dropped call may still run and leave a row.
    async fn wait_for_backends(&self) {
        let began = Instant::now();
        let sql = "SELECT pg_catalog.count(*) FROM pg_catalog.pg_stat_activity AS a WHERE a.application_name = $1";
        let application = self.application();
        while began.elapsed() < TO_CLEAR {
            let left = sqlx::query_scalar::<_, i64>(sql).bind(&application).fetch_one(self.audit_pool()).await;
            if !matches!(left, Ok(1..)) {
                return;
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    async fn forget(&self) -> Result<(), Error> {
        for what in LIMITS {
            self.audit.reset_all_keys(&self.limit(what)).await?;
        }
        Ok(())
    }

    /// Deletes the answers to idempotency keys. If the role may not delete them, waits until they have expired.
    async fn forget_answers(&self, stats: &Stats) -> Result<(), Failure> {
        let sql =
            format!("DELETE FROM {}.answers AS a WHERE pg_catalog.starts_with(a.idempotency_key, $1)", self.schema);
        let deleted = sqlx::query(AssertSqlSafe(sql)).bind(&self.name).execute(self.audit_pool()).await;
        if let Err(error) = deleted {
            stats.note(&format!(
                "answers to idempotency keys are left to expire in {KEEP:?}: {}",
                Error::database_message(&error)
            ));
            tokio::time::sleep(KEEP).await;
            self.audit.prune().await?;
        }
        Ok(())
    }

    /// The message to the user if not everything could be removed.
    fn left_behind(&self) -> String {
        let name = &self.name;
        format!(
            "rows of limits and a table whose names begin with \"{name}\" may remain: remove the rows with `pg-limiter reset`, \
             and drop the table"
        )
    }
}

fn limits(name: &str) -> Result<Limits, pg_limiter::InvalidLimit> {
    let second = Duration::from_secs(1);
    let century = |tokens: u32| Limit::token_bucket(tokens, CENTURY);
    let of = |what: &str| format!("{name} {what}");
    Limits::new()
        .define(&of("plain"), century(500))?
        .define(&of("sharded"), century(500).shards(4))?
        .define(&of("reserved"), century(300).max_reserved(200))?
        .define(&of("fixed"), Limit::fixed_window(400, CENTURY).start(Duration::ZERO))?
        .define(&of("slid"), Limit::sliding_window(400, CENTURY))?
        .define(&of("calendar"), Limit::calendar(400, Calendar::years(100)).zone("Europe/Berlin"))?
        .define(&of("left"), century(500))?
        .define(&of("spread"), century(450).shards(3))?
        .define(&of(SLOTS), Limit::concurrency(5).lease(second))?
        .define(&of(WITH_SLOTS), century(1_000_000))?
        .define(&of(GATE), Limit::gate())?
        .define(&of(BEHIND_GATE), century(1000))?
        .define(&of("first"), century(600))?
        .define(&of("second"), century(450).shards(3))?
        .define(&of("third"), Limit::sliding_window(500, CENTURY))?
        .define(&of("units"), century(150))?
        .define(&of("once"), century(100))?
        .define(&of("model"), century(100))?
        .define(&of(TOKENS), Limit::token_bucket(200, second).capacity(50))?
        .define(&of(WINDOW), Limit::fixed_window(200, second))?
        .define(&of(SLIDING), Limit::sliding_window(100, second).resolution(10))?
        .define(&of("brief"), Limit::token_bucket(1000, second).capacity(5))
}
