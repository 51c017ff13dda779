//! A release upgrades existing databases under load, and loses no grant, no balance and no job. Other releases are made up: they
//! are this one with a changed function, an added one, and other tables.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use pg_limiter::migrate::{Contents, Drift, MigrateError, Migrator, Part, Use, functions, migrate, script};
use pg_limiter::queue::{Finish, Job, JobState, Queue, WorkerConfig, handler_fn};
use pg_limiter::sqlx::{self, AssertSqlSafe, Connection, PgConnection};
use pg_limiter::{Error, Item, Limit, Limiter, Limits, Schema};

use crate::support::{Database, guide};

/// The SQL of a changed function.
const ALWAYS: &str =
    "CREATE OR REPLACE FUNCTION rate_limit._clock() RETURNS bigint LANGUAGE sql VOLATILE AS 'SELECT 0::bigint'";

const CLOCK: &str = "_clock()";

async fn drift(database: &Database) -> Vec<Drift> {
    Migrator::default().check(&database.pool).await.expect("checked")
}

async fn lines(database: &Database) -> Vec<String> {
    drift(database).await.iter().map(ToString::to_string).collect()
}

async fn text(database: &Database, sql: &str) -> String {
    sqlx::query_scalar(AssertSqlSafe(sql.to_owned())).fetch_one(&database.pool).await.expect("a text")
}

fn limits(rate: f64) -> Limits {
    let of = |rate| Limit::token_bucket(rate, Duration::from_secs(100_000_000));
    Limits::new().define("a", of(rate)).and_then(|limits| limits.define("b", of(1e6))).expect("limits")
}

fn role(database: &Database, what: &str) -> String {
    format!("{what}_of_{}", database.name)
}

/// The SQL of a function of this release, with this comment in its body: the same function of another release.
fn with_comment(signature: &str, comment: &str) -> String {
    let functions = functions(&Schema::default(), Part::ALL);
    let function = functions.iter().find(|function| function.signature == signature).expect("a function");
    function.sql.replacen("AS $function$\n", &format!("AS $function$\n-- {comment}\n"), 1)
}

/// SQL that records a function as a release of this version does.
fn record(signature: &str, version: &str) -> String {
    let installed = include_str!("../../sql/install/installed.sql");
    format!(
        "INSERT INTO rate_limit.objects (object, sha256, crate_version)
           SELECT which, definition, '{version}' FROM ({installed}) AS i WHERE what = 'function' AND which = '{signature}'
         ON CONFLICT (object) DO UPDATE SET sha256 = excluded.sha256, crate_version = excluded.crate_version"
    )
}

fn signature_of(name: &str) -> &'static str {
    let functions = functions(&Schema::default(), Part::ALL);
    let of_name = |signature: &&str| signature.split('(').next() == Some(name);
    functions.iter().map(|function| function.signature).find(of_name).expect("a function")
}

/// The database as an earlier release left it: without the queue and without one function, with another body of one function,
/// and with grants.
async fn of_an_earlier_release() -> Database {
    let database = Database::empty().await;
    Migrator::default().without_queue(true).run(&database.pool).await.expect("migrated");
    let changed = signature_of("_decide_one");
    database
        .execute(&format!(
            "{}; {}; DROP FUNCTION rate_limit.window; DELETE FROM rate_limit.objects WHERE object LIKE 'window(%';
             UPDATE rate_limit.objects SET crate_version = '0.0.1' WHERE crate_version IS NOT NULL;
             UPDATE rate_limit.migrations SET crate_version = '0.0.1'",
            with_comment(changed, "An earlier release."),
            record(changed, "0.0.1")
        ))
        .await;
    database
}

/// A next release: a migration adds a column, a function gets another body, and a function is added.
fn next_release() -> String {
    let changed = signature_of("_decide_one");
    let added = "_next(text)";
    format!(
        "BEGIN; SET LOCAL lock_timeout = '1s';
         ALTER TABLE rate_limit.jobs ADD COLUMN note text;
         INSERT INTO rate_limit.migrations (version, name, sha256, crate_version) VALUES (2, 'note', 'a hash', '99.0.0');
         {};
         CREATE FUNCTION rate_limit._next(key text) RETURNS boolean LANGUAGE sql VOLATILE SECURITY DEFINER
           SET search_path = pg_catalog, pg_temp AS
           $$ SELECT (rate_limit._decide_one(
             'a', key, 'token_bucket', 500, 100000000000000, 500, NULL, NULL, 1, 1, 1, 1, false))[1] = 1 $$;
         {};
         {};
         {};
         COMMIT",
        with_comment(changed, "The next release."),
        include_str!("../../sql/install/claim.sql").trim().trim_end_matches(';'),
        record(changed, "99.0.0"),
        record(added, "99.0.0")
    )
}

#[tokio::test(flavor = "multi_thread")]
async fn a_function_changed_by_hand_is_reported_and_replaced() {
    let database = Database::migrated().await;
    assert_eq!(drift(&database).await, []);

    let app = role(&database, "app");
    database
        .execute(&format!("CREATE ROLE {app}; GRANT EXECUTE ON FUNCTION rate_limit._clock TO {app}; {ALWAYS}"))
        .await;
    assert_eq!(drift(&database).await, [Drift::FunctionChanged { signature: CLOCK }]);

    let report = migrate(&database.pool).await.expect("migrated");
    assert_eq!((report.applied.len(), &*report.functions, &*report.changed_by_hand), (0, &[CLOCK][..], &[CLOCK][..]));
    assert_eq!(drift(&database).await, []);
    let granted = format!("SELECT has_function_privilege('{app}', 'rate_limit._clock()', 'EXECUTE')::text");
    assert_eq!(text(&database, &granted).await, "true", "grants stay");
    let public = "SELECT has_function_privilege('public', 'rate_limit._clock()', 'EXECUTE')::text";
    assert_eq!(text(&database, public).await, "false");

    // A dropped function is created again, for its owner only.
    database.execute("DROP FUNCTION rate_limit._clock()").await;
    assert_eq!(drift(&database).await, [Drift::FunctionMissing { signature: CLOCK }]);
    migrate(&database.pool).await.expect("migrated");
    assert_eq!(drift(&database).await, []);
    assert_eq!(text(&database, public).await, "false");
    database.execute(&format!("DROP OWNED BY {app}; DROP ROLE {app}")).await;
}

/// The comparison covers the settings of a function as well as its body.
#[tokio::test]
async fn every_property_that_decides_what_a_function_does_is_compared() {
    let database = Database::migrated().await;
    for change in ["SECURITY INVOKER", "RESET ALL", "STABLE", "SET search_path = public", "STRICT"] {
        database.execute(&format!("ALTER FUNCTION rate_limit.reset(text) {change}")).await;
        assert_eq!(drift(&database).await, [Drift::FunctionChanged { signature: "reset(text)" }], "{change}");
        migrate(&database.pool).await.expect("migrated");
        assert_eq!(drift(&database).await, [], "{change}");
    }
}

#[tokio::test]
async fn an_older_release_leaves_functions_of_a_newer_one_alone() {
    let database = Database::migrated().await;
    database.execute(ALWAYS).await;
    // The function is recorded as the newer release does.
    database.execute(&record(CLOCK, "99.0.0")).await;
    assert_eq!(drift(&database).await, []);
    assert_eq!(migrate(&database.pool).await.expect("migrated").functions, [""; 0]);
    // A function that the newer release has dropped is not created again.
    database.execute("DROP FUNCTION rate_limit._held").await;
    assert_eq!(migrate(&database.pool).await.expect("migrated").functions, [""; 0]);
    // If it was changed by hand since, that is reported, and left to the newer release.
    database.execute(&ALWAYS.replace("SELECT 0", "SELECT 1")).await;
    assert_eq!(drift(&database).await, [Drift::FunctionChanged { signature: CLOCK }]);
    assert_eq!(migrate(&database.pool).await.expect("migrated").functions, [""; 0]);
}

#[tokio::test]
async fn drift_in_tables_owners_and_privileges_is_reported() {
    let database = Database::migrated().await;
    let other = role(&database, "other");
    database.execute(&format!("CREATE ROLE {other}")).await;
    let other_owner = format!("the function rate_limit._held belongs to the role {other}");
    let cases: &[(String, &[&str])] = &[
        (
            "ALTER TABLE rate_limit.answers SET UNLOGGED".into(),
            &["the table answers is table UNLOGGED; expected: table"],
        ),
        (
            "CREATE TABLE archive () INHERITS (rate_limit.answers)".into(),
            &["the table answers is table with the child public.archive; expected: table"],
        ),
        (
            "DROP VIEW rate_limit.buckets; ALTER TABLE rate_limit.rate_limits ALTER COLUMN value TYPE real".into(),
            &["the column rate_limits.value is real NOT NULL; expected: double precision NOT NULL"],
        ),
        ("DROP INDEX rate_limit.jobs_due".into(), &["the index jobs.jobs_due is missing"]),
        ("ALTER TABLE rate_limit.groups DROP COLUMN lag CASCADE".into(), &["the column groups.lag is missing"]),
        (format!("ALTER FUNCTION rate_limit._held OWNER TO {other}"), &[&other_owner]),
        ("GRANT UPDATE ON rate_limit.rate_limits TO PUBLIC".into(), &["every role has UPDATE on rate_limits"]),
        (
            "GRANT SELECT (key) ON rate_limit.rate_limits TO PUBLIC".into(),
            &["every role has SELECT on rate_limits.key"],
        ),
        (
            "GRANT EXECUTE ON FUNCTION rate_limit._ring TO PUBLIC".into(),
            &["every role has EXECUTE on _ring(text, bigint)"],
        ),
        (
            "UPDATE rate_limit.migrations SET sha256 = 'other' WHERE name = 'queue'".into(),
            &["migration 1 (queue) was applied with different SQL"],
        ),
    ];
    for (change, expected) in cases {
        let mut tx = database.pool.begin().await.expect("begin");
        sqlx::raw_sql(AssertSqlSafe(change.clone())).execute(&mut *tx).await.expect("changed");
        let found = Migrator::default().check_on(&mut tx).await.expect("checked");
        let found: Vec<String> = found.iter().map(ToString::to_string).collect();
        tx.rollback().await.expect("rollback");
        for line in *expected {
            assert!(found.iter().any(|found| found.starts_with(line)), "{change}: {found:?}");
        }
    }
    assert_eq!(lines(&database).await, [""; 0]);
    database.execute(&format!("DROP ROLE {other}")).await;
}

/// Callers on `("a", "k")`, which has 500 tokens, until they are stopped.
struct Load {
    ends: Arc<AtomicBool>,
    calls: Arc<AtomicU64>,
    taken: Arc<AtomicU64>,
    failed: Arc<AtomicU64>,
    callers: Vec<tokio::task::JoinHandle<()>>,
}

impl Load {
    fn new() -> Self {
        let count = Arc::<AtomicU64>::default;
        Self { ends: Arc::default(), calls: count(), taken: count(), failed: count(), callers: Vec::new() }
    }

    /// Starts a caller.
    fn call<F, R>(&mut self, call: F)
    where
        F: Fn() -> R + Send + Sync + 'static,
        R: Future<Output = Result<bool, Error>> + Send,
    {
        let (ends, calls, taken, failed) =
            (self.ends.clone(), self.calls.clone(), self.taken.clone(), self.failed.clone());
        self.callers.push(tokio::spawn(async move {
            while !ends.load(Ordering::Relaxed) {
                match call().await {
                    Ok(allowed) => _ = taken.fetch_add(u64::from(allowed), Ordering::Relaxed),
                    Err(error) => {
                        eprintln!("a call failed: {error}");
                        failed.fetch_add(1, Ordering::Relaxed);
                    }
                }
                calls.fetch_add(1, Ordering::Relaxed);
            }
        }));
    }

    /// Starts callers of this release: lone calls, groups, and calls in transactions.
    fn call_as_this_release(&mut self, database: &Database, limiter: &Limiter) {
        for nth in 0..6 {
            let (limiter, pool) = (limiter.clone(), database.app.clone());
            self.call(move || {
                let (limiter, pool) = (limiter.clone(), pool.clone());
                async move {
                    let decision = match nth {
                        0..2 => limiter.limit(("a", "k")).await?,
                        2..4 => limiter.limit([Item::new("b", "k").count(2), Item::new("a", "k")]).await?,
                        _ => {
                            let mut tx = pool.begin().await.expect("begin");
                            let decision = limiter.within(&mut tx).limit(("a", "k")).await?;
                            tx.commit().await.expect("commit");
                            decision
                        }
                    };
                    Ok(decision.is_allowed())
                }
            });
        }
    }

    /// Waits until so many calls more were made.
    async fn go_on(&self, count: u64) {
        let goal = self.calls.load(Ordering::Relaxed) + count;
        while self.calls.load(Ordering::Relaxed) < goal {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }

    /// Ends the callers once the tokens are used up. No call failed, and no token was granted twice.
    async fn end(self) {
        while self.taken.load(Ordering::Relaxed) < 500 {
            self.go_on(10).await;
        }
        self.go_on(200).await;
        self.ends.store(true, Ordering::Relaxed);
        for caller in self.callers {
            caller.await.expect("a caller");
        }
        assert_eq!((self.taken.load(Ordering::Relaxed), self.failed.load(Ordering::Relaxed)), (500, 0));
    }
}

/// This release upgrades the database of an earlier one while processes use it.
#[tokio::test(flavor = "multi_thread")]
async fn a_database_of_an_earlier_release_is_upgraded_under_load() {
    let database = of_an_earlier_release().await;
    let app = role(&database, "app");
    let grants = guide::grants(Use::App).replace("rate_limit.window,", "").replace("app_role", &app);
    database.execute(&format!("CREATE ROLE {app}; {grants}")).await;
    let limiter = database.limiter(limits(500.0));
    let mut load = Load::new();
    load.call_as_this_release(&database, &limiter);
    load.go_on(50).await;
    let report = migrate(&database.pool).await.expect("migrated");
    assert_eq!((report.version, &*report.applied, &*report.changed_by_hand), (1, &["queue"][..], &[""; 0][..]));
    for name in ["_decide_one", "window", "_claim", "_slots_freed"] {
        assert!(report.functions.contains(&signature_of(name)), "{name}: {:?}", report.functions);
    }
    // A newer process uses the queue beside them.
    let queue = Queue::new(&limiter, "mails").expect("a queue");
    load.call(move || {
        let queue = queue.clone();
        async move {
            let job = Job::new(("b", "jobs"), &1).expect("a job");
            queue.enqueue(job).await?.enforce()?;
            Ok(false)
        }
    });
    load.go_on(50).await;
    load.end().await;
    assert_eq!(drift(&database).await, []);
    let may =
        |function: &str| format!("SELECT has_function_privilege('{app}', 'rate_limit.{function}', 'EXECUTE')::text");
    assert_eq!(text(&database, &may(signature_of("_decide_one"))).await, "true", "grants stay");
    assert_eq!(text(&database, &may(signature_of("window"))).await, "false", "a new function is its owner's");
    database.execute(&format!("DROP OWNED BY {app}; DROP ROLE {app}")).await;
}

/// Processes of this release go on while a newer one upgrades the database, and beside newer processes.
#[tokio::test(flavor = "multi_thread")]
async fn the_next_release_upgrades_the_database_under_load() {
    let database = Database::migrated().await;
    let limiter = database.limiter(limits(500.0));
    let queue = Queue::new(&limiter, "mails").expect("a queue");
    let mut load = Load::new();
    load.call_as_this_release(&database, &limiter);
    let pool = database.app.clone();
    load.call(move || {
        let (queue, pool) = (queue.clone(), pool.clone());
        async move {
            let mut tx = pool.begin().await.expect("begin");
            queue.within(&mut tx).enqueue(Job::new(("b", "jobs"), &1).expect("a job")).await?.enforce()?;
            tx.commit().await.expect("commit");
            Ok(false)
        }
    });
    load.go_on(50).await;
    let mut session = PgConnection::connect(&database.url).await.expect("a connection");
    while let Err(error) = sqlx::raw_sql(AssertSqlSafe(next_release())).execute(&mut session).await {
        assert_eq!(error.as_database_error().and_then(|error| error.code()).as_deref(), Some("55P03"), "{error}");
        sqlx::raw_sql("ROLLBACK").execute(&mut session).await.expect("rollback");
    }
    session.close().await.expect("close");
    let newer = database.pool.clone();
    load.call(move || {
        let newer = newer.clone();
        async move {
            let allowed = sqlx::query_scalar("SELECT rate_limit._next('k')").fetch_one(&newer).await;
            Ok(allowed.expect("a decision"))
        }
    });
    load.go_on(50).await;
    // This release leaves the newer objects alone.
    let report = migrate(&database.pool).await.expect("migrated");
    assert_eq!((report.version, report.applied.len(), report.functions.len()), (2, 0, 0));
    assert_eq!(drift(&database).await, []);
    load.end().await;
    let body = "SELECT (prosrc LIKE '%The next release.%')::text FROM pg_proc WHERE proname = '_decide_one'";
    assert_eq!(text(&database, body).await, "true");
    let handler = handler_fn(|_, _| Box::pin(async { Ok(Finish::Done) }));
    let queue = Queue::new(&limiter, "mails").expect("a queue");
    let worker = queue.worker(WorkerConfig::default(), handler).expect("a worker");
    let done = async {
        while queue.jobs(Some(JobState::Done), 1).await.expect("jobs").is_empty() {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    assert_eq!(worker.run(done).await.expect("a report").failed, 0);
}

/// A newer release may have dropped functions of the queue, so this release does not add it.
#[tokio::test]
async fn an_older_release_adds_no_queue_to_a_newer_schema() {
    let database = Database::empty().await;
    Migrator::default().without_queue(true).run(&database.pool).await.expect("migrated");
    database.execute(&format!("{ALWAYS}; {}", record(CLOCK, "99.0.0"))).await;
    let report = migrate(&database.pool).await.expect("migrated");
    assert_eq!((report.applied.len(), report.functions.len()), (0, 0));
    assert_eq!(drift(&database).await, []);
}

/// Printed SQL gives the same result as `migrate()`, on an empty database and on one of an earlier release, and for each of its
/// parts.
#[tokio::test]
async fn printed_sql_gives_the_same_schema_as_migrate() {
    let schema = Schema::default();
    let database = of_an_earlier_release().await;
    database.execute(&script(&schema, Contents::From(1), Part::ALL)).await;
    assert_eq!(drift(&database).await, []);
    database.execute(ALWAYS).await;
    database.execute(&script(&schema, Contents::Functions, Part::ALL)).await;
    assert_eq!(drift(&database).await, []);
    let settings = "SELECT current_setting('lock_timeout') || current_setting('check_function_bodies')";
    assert_eq!(text(&database, settings).await, "0on", "no setting is left behind");
    let records =
        "SELECT count(*)::text FROM rate_limit.objects WHERE sha256 IS NOT NULL AND crate_version IS NOT NULL";
    assert_eq!(text(&database, records).await, functions(&schema, Part::ALL).len().to_string());
}

/// Functions are replaced, and printed SQL is run again, while another transaction locks every table.
#[tokio::test]
async fn functions_are_replaced_without_locks_on_tables() {
    let database = Database::migrated().await;
    database.execute(ALWAYS).await;
    let mut holder = PgConnection::connect(&database.url).await.expect("a connection");
    sqlx::raw_sql(
        "BEGIN; LOCK TABLE rate_limit.rate_limits, rate_limit.jobs, rate_limit.groups, rate_limit.workers, rate_limit.queues, rate_limit.answers
         IN ACCESS EXCLUSIVE MODE",
    )
    .execute(&mut holder)
    .await
    .expect("locked");
    let report = migrate(&database.pool).await.expect("migrated");
    assert_eq!(report.functions, [CLOCK]);
    let mut tx = database.pool.begin().await.expect("begin");
    sqlx::raw_sql(AssertSqlSafe(script(&Schema::default(), Contents::All, Part::ALL)))
        .execute(&mut *tx)
        .await
        .expect("run again");
    tx.commit().await.expect("commit");
    holder.close().await.expect("close");
}

/// A change to a table waits for an open transaction in short turns, so that other transactions do not wait behind it.
#[tokio::test(flavor = "multi_thread")]
async fn a_change_to_a_table_does_not_block_others_while_it_waits() {
    let database = Database::migrated().await;
    database.execute("DROP INDEX rate_limit.jobs_dead; DELETE FROM rate_limit.migrations WHERE name = 'queue'").await;
    let writes = "SET LOCAL lock_timeout = '5s'; LOCK TABLE rate_limit.jobs IN ROW EXCLUSIVE MODE";
    let mut holder = database.pool.begin().await.expect("begin");
    sqlx::raw_sql(writes).execute(&mut *holder).await.expect("a lock");
    let pool = database.pool.clone();
    let migrating = tokio::spawn(async move { migrate(&pool).await });
    // Another transaction waits for at most one turn, however long the lock holder stays open.
    for _ in 0..4 {
        let mut other = database.pool.begin().await.expect("begin");
        sqlx::raw_sql(writes).execute(&mut *other).await.expect("its turn");
        other.rollback().await.expect("rollback");
        tokio::time::sleep(Duration::from_millis(300)).await;
    }
    assert!(!migrating.is_finished(), "the migration did not wait for the lock holder");
    holder.rollback().await.expect("rollback");
    assert_eq!(migrating.await.expect("a task").expect("migrated").applied, ["queue"]);
    assert_eq!(drift(&database).await, []);
}

#[tokio::test]
async fn a_client_rejects_a_schema_that_a_newer_release_has_broken() {
    let database = Database::migrated().await;
    database.execute("INSERT INTO rate_limit.migrations VALUES (99, 'later', '', '99.0.0', true)").await;
    let limiter = database.limiter(limits(5.0));
    let mut tx = database.app.begin().await.expect("begin");
    let errors = [
        limiter.limit(("a", "k")).await.expect_err("too new"),
        limiter.within(&mut tx).limit(("a", "k")).await.expect_err("too new"),
        limiter.reset_all_keys("a").await.expect_err("too new"),
    ];
    for error in errors {
        assert!(matches!(error, Error::SchemaTooNew { found: 99, known: 1, .. }), "{error:?}");
        assert_eq!(error.code(), "schema_too_new");
        assert!(!error.is_retryable() && error.to_string().ends_with("update pg-limiter"), "{error}");
    }
    drop(tx);
    assert_eq!(database.rows().await, 0);
    assert!(matches!(migrate(&database.pool).await, Err(MigrateError::SchemaTooNew { found: 99, known: 1, .. })));
    // A newer schema that is not breaking is accepted.
    database.execute("UPDATE rate_limit.migrations SET breaking = false WHERE version = 99").await;
    assert!(limiter.limit(("a", "k")).await.expect("a decision").is_allowed());
}
