//! A new release upgrades existing databases, and loses no grant, no balance and no job.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use pg_limiter::migrate::{Drift, MigrateError, Migrator, Part, functions, migrate, script};
use pg_limiter::queue::{Finish, Job, JobState, Queue, WorkerConfig, handler_fn};
use pg_limiter::sqlx::{self, AssertSqlSafe, Connection, PgConnection};
use pg_limiter::{Call, Error, Item, Limit, Limits, Schema, TransactionLimiter};

use crate::support::{Database, guide};

/// The SQL of a changed function.
const ALWAYS: &str =
    "CREATE OR REPLACE FUNCTION public.rate_limit_clock() RETURNS bigint LANGUAGE sql VOLATILE AS 'SELECT 0::bigint'";

const CLOCK: &str = "rate_limit_clock()";

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

/// The database as the previous release left it: its tables, functions, history and grants.
async fn of_the_release_before() -> Database {
    let database = Database::empty().await;
    database
        .execute(
            "CREATE TABLE rate_limits_migrations (version integer PRIMARY KEY, name text NOT NULL,
               applied_at timestamp with time zone NOT NULL DEFAULT pg_catalog.now());
             GRANT SELECT ON rate_limits_migrations TO PUBLIC;
             INSERT INTO rate_limits_migrations (version, name) VALUES (1, 'rate_limits'), (2, 'queue'), (3, 'answers')",
        )
        .await;
    for sql in [
        include_str!("../data/release_before/0001_rate_limits.sql"),
        include_str!("../data/release_before/0002_queue.sql"),
        include_str!("../data/release_before/0003_answers.sql"),
    ] {
        database.execute(sql).await;
    }
    database
}

#[tokio::test(flavor = "multi_thread")]
async fn a_function_changed_by_hand_is_reported_and_replaced() {
    let database = Database::migrated().await;
    assert_eq!(drift(&database).await, []);

    let app = role(&database, "app");
    database
        .execute(&format!("CREATE ROLE {app}; GRANT EXECUTE ON FUNCTION rate_limit_clock TO {app}; {ALWAYS}"))
        .await;
    assert_eq!(drift(&database).await, [Drift::FunctionChanged { signature: CLOCK }]);

    let report = migrate(&database.pool).await.expect("migrated");
    assert_eq!((report.applied.len(), &*report.functions, &*report.changed_by_hand), (0, &[CLOCK][..], &[CLOCK][..]));
    assert_eq!(drift(&database).await, []);
    let granted = format!("SELECT has_function_privilege('{app}', 'rate_limit_clock()', 'EXECUTE')::text");
    assert_eq!(text(&database, &granted).await, "true", "grants stay");
    let public = "SELECT has_function_privilege('public', 'rate_limit_clock()', 'EXECUTE')::text";
    assert_eq!(text(&database, public).await, "false");

    // A dropped function is created again, for its owner only.
    database.execute("DROP FUNCTION rate_limit_clock()").await;
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
        database.execute(&format!("ALTER FUNCTION rate_limit_reset(text) {change}")).await;
        assert_eq!(
            drift(&database).await,
            [Drift::FunctionChanged { signature: "rate_limit_reset(text)" }],
            "{change}"
        );
        migrate(&database.pool).await.expect("migrated");
        assert_eq!(drift(&database).await, [], "{change}");
    }
}

#[tokio::test]
async fn an_older_release_leaves_functions_of_a_newer_one_alone() {
    let database = Database::migrated().await;
    database.execute(ALWAYS).await;
    // The function is recorded as the newer release does.
    let record =
        "UPDATE rate_limits_objects SET crate_version = '99.0.0', sha256 = $1 WHERE object = 'rate_limit_clock()'";
    let hash = hash_of_clock(&database).await;
    sqlx::query(record).bind(hash).execute(&database.pool).await.expect("recorded");
    assert_eq!(drift(&database).await, []);
    assert_eq!(migrate(&database.pool).await.expect("migrated").functions, [""; 0]);
    // A function that the newer release has dropped is not created again.
    database.execute("DROP FUNCTION rate_limit_held").await;
    assert_eq!(migrate(&database.pool).await.expect("migrated").functions, [""; 0]);
    // If it was changed by hand since, that is reported, and left to the newer release.
    database.execute(&ALWAYS.replace("SELECT 0", "SELECT 1")).await;
    assert_eq!(drift(&database).await, [Drift::FunctionChanged { signature: CLOCK }]);
    assert_eq!(migrate(&database.pool).await.expect("migrated").functions, [""; 0]);
}

async fn hash_of_clock(database: &Database) -> String {
    let installed = include_str!("../../sql/install/installed.sql");
    let of_clock = format!("SELECT definition FROM ({installed}) AS i WHERE what = 'function' AND which = '{CLOCK}'");
    text(database, &of_clock).await
}

#[tokio::test]
async fn drift_in_tables_owners_and_privileges_is_reported() {
    let database = Database::migrated().await;
    let other = role(&database, "other");
    database.execute(&format!("CREATE ROLE {other}")).await;
    let other_owner = format!("the function rate_limit_held(text[],text[]) belongs to the role {other}");
    let cases: &[(String, &[&str])] = &[
        (
            "ALTER TABLE rate_limit_answers SET UNLOGGED".into(),
            &["the table rate_limit_answers is table UNLOGGED; expected: table"],
        ),
        (
            "DROP VIEW rate_limit_buckets; ALTER TABLE rate_limits ALTER COLUMN value TYPE real".into(),
            &["the column rate_limits.value is real NOT NULL; expected: double precision NOT NULL"],
        ),
        ("DROP INDEX rate_limit_jobs_due".into(), &["the index rate_limit_jobs.rate_limit_jobs_due is missing"]),
        (
            "ALTER TABLE rate_limit_groups DROP COLUMN lag CASCADE".into(),
            &["the column rate_limit_groups.lag is missing"],
        ),
        (format!("ALTER FUNCTION rate_limit_held OWNER TO {other}"), &[&other_owner]),
        ("GRANT UPDATE ON rate_limits TO PUBLIC".into(), &["every role has UPDATE on rate_limits"]),
        ("GRANT SELECT (key) ON rate_limits TO PUBLIC".into(), &["every role has SELECT on rate_limits.key"]),
        (
            "GRANT EXECUTE ON FUNCTION rate_limit_ring TO PUBLIC".into(),
            &["every role has EXECUTE on rate_limit_ring(text, bigint)"],
        ),
        (
            "UPDATE rate_limits_migrations SET sha256 = 'other' WHERE version = 2".into(),
            &["migration 2 was applied with different SQL"],
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

/// The statements of a client of the previous release: a single call, and a group.
const OLD_LONE: &str = "SELECT (rate_limit_take('a', 'k', 500, 100000000000000, 500, 1, 1, 1))[1] = 1";
const OLD_GROUP: &str = "SELECT call_admitted IS NULL OR call_admitted[1] = 1
    FROM rate_limit_decide(ARRAY['token_bucket', 'token_bucket'], ARRAY[500, 1e6], ARRAY[100000000000000, 100000000000000], NULL,
      NULL, NULL, NULL, NULL, ARRAY['b', 'a'], ARRAY['k', 'k'], ARRAY[2, 1], ARRAY[1, 2], ARRAY[1, 1], NULL, NULL, ARRAY[2], NULL,
      NULL)";

/// Decides in its own transaction, and retries after a conflict.
async fn as_the_release_before(pool: &sqlx::PgPool, sql: &'static str) -> Result<bool, sqlx::Error> {
    loop {
        let mut tx = pool.begin_with("BEGIN ISOLATION LEVEL SERIALIZABLE").await?;
        let decided = match sqlx::query_scalar(sql).fetch_one(&mut *tx).await {
            Ok(allowed) => tx.commit().await.map(|()| allowed),
            Err(error) => Err(error),
        };
        match decided {
            Err(error) if error.as_database_error().and_then(|error| error.code()).as_deref() == Some("40001") => {}
            decided => return decided,
        }
    }
}

/// Callers take tokens and enqueue jobs while the database is upgraded: no call fails, and no token is granted twice.
#[tokio::test(flavor = "multi_thread")]
async fn a_database_of_the_previous_release_is_upgraded_under_load() {
    let database = of_the_release_before().await;
    let app = role(&database, "app");
    database.execute(&format!("CREATE ROLE {app}")).await;
    let grants = ["decide_sums", "decide_leases", "take_slots", "window"]
        .iter()
        .fold(guide::grants()[0].to_owned(), |grants, new| grants.replace(&format!("public.rate_limit_{new},"), ""));
    database.execute(&grants.replace("rate_limit_decide_one", "rate_limit_take").replace("app_role", &app)).await;
    let limiter = database.limiter(limits(500.0));
    let queue = Queue::new(&limiter, "mails").expect("a queue");
    let (ends, taken, failed) =
        (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)), Arc::new(AtomicU64::new(0)));
    let started = Arc::new(AtomicU64::new(0));
    let mut callers = Vec::new();
    for nth in 0..8 {
        let (queue, pool) = (queue.clone(), database.app.clone());
        let (ends, taken, failed, started) = (ends.clone(), taken.clone(), failed.clone(), started.clone());
        callers.push(tokio::spawn(async move {
            while !ends.load(Ordering::Relaxed) {
                let allowed = match nth {
                    0..4 => as_the_release_before(&pool, OLD_LONE).await,
                    4..6 => as_the_release_before(&pool, OLD_GROUP).await,
                    _ => {
                        let mut tx = pool.begin().await.expect("begin");
                        let job = Job::new(("b", "jobs"), &1).expect("a job");
                        queue
                            .within(&mut tx)
                            .enqueue(job)
                            .await
                            .expect("enqueued")
                            .enforce()
                            .expect("the bucket has tokens");
                        let allowed = sqlx::query_scalar(OLD_LONE).fetch_one(&mut *tx).await;
                        tx.commit().await.expect("commit");
                        allowed
                    }
                };
                match allowed {
                    Ok(allowed) => _ = taken.fetch_add(u64::from(allowed), Ordering::Relaxed),
                    Err(error) => {
                        eprintln!("a call failed: {error}");
                        failed.fetch_add(1, Ordering::Relaxed);
                    }
                }
                started.fetch_add(1, Ordering::Relaxed);
            }
        }));
    }
    let after = |count: u64| {
        let started = started.clone();
        async move {
            let goal = started.load(Ordering::Relaxed) + count;
            while started.load(Ordering::Relaxed) < goal {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        }
    };
    after(100).await;
    let report = migrate(&database.pool).await.expect("migrated");
    assert_eq!((&*report.applied, &*report.changed_by_hand), (&[4, 5, 6][..], &[""; 0][..]));
    assert!(report.functions.len() > 2, "{:?}", report.functions);
    // New clients run beside the old ones.
    let newer = database.limiter(limits(500.0));
    let mut new_callers = Vec::new();
    for _ in 0..4 {
        let (newer, ends, taken) = (newer.clone(), ends.clone(), taken.clone());
        new_callers.push(tokio::spawn(async move {
            while !ends.load(Ordering::Relaxed) {
                let decision = newer.limit(("a", "k")).await.expect("a decision");
                taken.fetch_add(u64::from(decision.is_allowed()), Ordering::Relaxed);
            }
        }));
    }
    while taken.load(Ordering::Relaxed) < 500 {
        after(10).await;
    }
    after(200).await;
    ends.store(true, Ordering::Relaxed);
    for caller in callers.into_iter().chain(new_callers) {
        caller.await.expect("a caller");
    }
    assert_eq!((taken.load(Ordering::Relaxed), failed.load(Ordering::Relaxed)), (500, 0));
    assert_eq!(drift(&database).await, []);
    let granted = format!("SELECT has_function_privilege('{app}', 'rate_limit_reset(text)', 'EXECUTE')::text");
    assert_eq!(text(&database, &granted).await, "true", "grants stay");
    database.execute(&format!("DROP OWNED BY {app}; DROP ROLE {app}")).await;
}

/// Their workers know no concurrency limits, and must not run a job without its slots.
#[tokio::test(flavor = "multi_thread")]
async fn jobs_of_the_release_before_run_beside_jobs_with_slots() {
    let database = of_the_release_before().await;
    let old_job = "SELECT job_ids[1]::text FROM rate_limit_enqueue('q', '{token_bucket}', '{10}', '{1000000}', '{NULL}', '{NULL}',
         '{NULL}', '{NULL}', '{NULL}', '{a}', '{k}', '{1}', '{1}', '{1}', '{1}', '{k}', '{1}', '{0}', '{NULL}', '{0}', '{NULL}',
         '{5}', false)";
    let before = text(&database, old_job).await;
    let rows = "SELECT string_agg(ctid::text || xmin, ' ') FROM rate_limit_jobs";
    let written = text(&database, rows).await;
    migrate(&database.pool).await.expect("migrated");
    assert_eq!(text(&database, rows).await, written, "a row was rewritten");

    let limits = limits(10.0).define("slots", Limit::concurrency(1)).expect("limits");
    let queue = Queue::new(&database.limiter(limits), "q").expect("a queue");
    for nth in 0..2 {
        queue
            .enqueue(Job::new(("slots", "k"), &nth).expect("a job").group("slots"))
            .await
            .expect("an answer")
            .enforce()
            .expect("scheduled");
    }
    let after = text(&database, old_job).await;
    let claimed = text(
        &database,
        "SELECT string_agg(job_id::text, ' ' ORDER BY job_id) FROM rate_limit_claim('q', 'old', 10, 0, 1000000, 1000000,
           '{a}', '{token_bucket}', '{10}', '{1000000}', '{NULL}', '{NULL}')",
    )
    .await;
    assert_eq!(claimed, format!("{before} {after}"));
    let handler = handler_fn(|_, _| Box::pin(async { Ok(Finish::Done) }));
    let worker = queue.worker(WorkerConfig::default(), handler).expect("a worker");
    let done = async {
        while queue.jobs(Some(JobState::Done), 10).await.expect("jobs").len() < 4 {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    let report = worker.run(done).await.expect("a report");
    assert_eq!(report.done, 4, "{report:?}");
}

/// They know no headroom, and must not allow a call as if it had none.
#[tokio::test]
async fn the_functions_of_the_release_before_reject_a_headroom() {
    let database = of_the_release_before().await;
    let limits = TransactionLimiter::new(limits(10.0));
    let mut conn = database.pool.acquire().await.expect("a connection");
    let group = [Item::new("a", "k"), Item::new("b", "k").leave(5)];
    for call in [Call::from(Item::new("a", "k").leave(5)), group.into()] {
        let error = limits.within(&mut conn).limit(call).await.expect_err("no headroom");
        assert!(matches!(error, Error::Database { .. }) && error.to_string().contains("not valid"), "{error}");
    }
    assert_eq!(database.rows().await, 0);
    migrate(&database.pool).await.expect("migrated");
    assert!(limits.within(&mut conn).limit(Item::new("a", "k").leave(5)).await.expect("a decision").is_allowed());
}

/// A function with another result type, of a release that recorded no functions.
#[tokio::test]
async fn an_unrecorded_function_with_another_result_is_dropped_and_granted_again() {
    let database = of_the_release_before().await;
    let app = role(&database, "app");
    database
        .execute(&format!(
            "CREATE ROLE {app}; DROP FUNCTION rate_limit_prune_answers;
             CREATE FUNCTION rate_limit_prune_answers(step integer) RETURNS text LANGUAGE sql AS 'SELECT 1::text';
             REVOKE ALL ON FUNCTION rate_limit_prune_answers FROM PUBLIC;
             GRANT EXECUTE ON FUNCTION rate_limit_prune_answers TO {app}"
        ))
        .await;
    migrate(&database.pool).await.expect("migrated");
    assert_eq!(drift(&database).await, []);
    let may = |role: &str| {
        format!("SELECT has_function_privilege('{role}', 'rate_limit_prune_answers(integer)', 'EXECUTE')::text")
    };
    assert_eq!(text(&database, &may(&app)).await, "true");
    assert_eq!(text(&database, &may("public")).await, "false");
    database.execute(&format!("DROP OWNED BY {app}; DROP ROLE {app}")).await;
}

/// The client calls other functions than the previous release did. Migrating grants them to the roles that could call their
/// predecessors.
#[tokio::test]
async fn roles_keep_the_right_to_make_decisions() {
    let (app, other) = ("app", "other");
    for by_printed_sql in [false, true] {
        let database = of_the_release_before().await;
        let (app, other) = (role(&database, app), role(&database, other));
        database
            .execute(&format!(
                "CREATE ROLE {app}; CREATE ROLE {other};
                 GRANT EXECUTE ON FUNCTION rate_limit_decide, rate_limit_take, rate_limit_enqueue TO {app};
                 GRANT EXECUTE ON FUNCTION rate_limit_held TO {other}"
            ))
            .await;
        if by_printed_sql {
            database.execute(&script(&Schema::default(), Part::All)).await;
        } else {
            migrate(&database.pool).await.expect("migrated");
        }
        for (role, expected) in [(&app, "true"), (&other, "false")] {
            for new in ["decide_one", "decide_sums", "decide_leases", "take_slots", "window", "enqueue_slots"] {
                let function = format!("rate_limit_{new}");
                let sql = format!(
                    "SELECT bool_and(has_function_privilege('{role}', oid, 'EXECUTE'))::text FROM pg_proc \
                     WHERE proname = '{function}'"
                );
                assert_eq!(text(&database, &sql).await, expected, "{function}, printed: {by_printed_sql}");
            }
        }
        let limiter = pg_limiter::TransactionLimiter::new(limits(2.0));
        let mut conn = PgConnection::connect(&database.url).await.expect("connect");
        sqlx::query(AssertSqlSafe(format!("SET ROLE {app}"))).execute(&mut conn).await.expect("the role");
        let lone = limiter.within(&mut conn).limit(("a", "k")).await.expect("a decision");
        assert!(lone.is_allowed());
        let both = [Item::new("a", "k"), Item::new("b", "k")];
        assert!(limiter.within(&mut conn).limit(both).await.expect("a decision").is_allowed());
        conn.close().await.expect("close");
        database.execute(&format!("DROP OWNED BY {app}, {other}; DROP ROLE {app}, {other}")).await;
    }
}

/// Printed SQL gives the same result as `migrate()`, on an empty database and on one of the previous release, and for each of
/// its parts.
#[tokio::test]
async fn printed_sql_gives_the_same_schema_as_migrate() {
    let schema = Schema::default();
    let database = of_the_release_before().await;
    database.execute(&script(&schema, Part::From(4))).await;
    assert_eq!(drift(&database).await, []);
    database.execute(ALWAYS).await;
    database.execute(&script(&schema, Part::Functions)).await;
    assert_eq!(drift(&database).await, []);
    let settings = "SELECT current_setting('lock_timeout') || current_setting('check_function_bodies')";
    assert_eq!(text(&database, settings).await, "0on", "no setting is left behind");
    let records =
        "SELECT count(*)::text FROM rate_limits_objects WHERE sha256 IS NOT NULL AND crate_version IS NOT NULL";
    assert_eq!(text(&database, records).await, functions(&schema).len().to_string());
}

/// Functions are replaced, and printed SQL is run again, while another transaction locks every table.
#[tokio::test]
async fn functions_are_replaced_without_locks_on_tables() {
    let database = Database::migrated().await;
    database.execute(ALWAYS).await;
    let mut holder = PgConnection::connect(&database.url).await.expect("a connection");
    sqlx::raw_sql(
        "BEGIN; LOCK TABLE rate_limits, rate_limit_jobs, rate_limit_groups, rate_limit_workers, rate_limit_answers
         IN ACCESS EXCLUSIVE MODE",
    )
    .execute(&mut holder)
    .await
    .expect("locked");
    let report = migrate(&database.pool).await.expect("migrated");
    assert_eq!(report.functions, [CLOCK]);
    let mut tx = database.pool.begin().await.expect("begin");
    sqlx::raw_sql(AssertSqlSafe(script(&Schema::default(), Part::All))).execute(&mut *tx).await.expect("run again");
    tx.commit().await.expect("commit");
    holder.close().await.expect("close");
}

/// A change to a table waits for an open transaction in short turns, so that other transactions do not wait behind it.
#[tokio::test(flavor = "multi_thread")]
async fn a_change_to_a_table_does_not_block_others_while_it_waits() {
    let database = Database::migrated().await;
    database
        .execute(
            "ALTER TABLE rate_limit_jobs DROP COLUMN paid_item; DELETE FROM rate_limits_migrations WHERE version = 4",
        )
        .await;
    let mut holder = database.pool.begin().await.expect("begin");
    sqlx::query("SELECT FROM rate_limit_jobs").execute(&mut *holder).await.expect("a lock");
    let pool = database.pool.clone();
    let migrating = tokio::spawn(async move { migrate(&pool).await });
    // Another transaction waits for at most one turn, however long the lock holder stays open.
    for _ in 0..4 {
        let mut other = database.pool.begin().await.expect("begin");
        sqlx::raw_sql("SET LOCAL lock_timeout = '5s'; SELECT FROM rate_limit_jobs")
            .execute(&mut *other)
            .await
            .expect("its turn");
        other.rollback().await.expect("rollback");
        tokio::time::sleep(Duration::from_millis(300)).await;
    }
    assert!(!migrating.is_finished(), "the migration did not wait for the lock holder");
    holder.rollback().await.expect("rollback");
    assert_eq!(migrating.await.expect("a task").expect("migrated").applied, [4]);
    assert_eq!(drift(&database).await, []);
}

#[tokio::test]
async fn a_client_rejects_a_schema_that_a_newer_release_has_broken() {
    let database = Database::migrated().await;
    database.execute("INSERT INTO rate_limits_migrations (version, name, breaking) VALUES (99, 'later', true)").await;
    let limiter = database.limiter(limits(5.0));
    let mut tx = database.app.begin().await.expect("begin");
    let errors = [
        limiter.limit(("a", "k")).await.expect_err("too new"),
        limiter.within(&mut tx).limit(("a", "k")).await.expect_err("too new"),
        limiter.reset_all_keys("a").await.expect_err("too new"),
    ];
    for error in errors {
        assert!(matches!(error, Error::SchemaTooNew { found: 99, known: 6, .. }), "{error:?}");
        assert_eq!(error.code(), "schema_too_new");
        assert!(!error.is_retryable() && error.to_string().ends_with("update pg-limiter"), "{error}");
    }
    drop(tx);
    assert_eq!(database.rows().await, 0);
    assert!(matches!(migrate(&database.pool).await, Err(MigrateError::SchemaTooNew { found: 99, known: 6, .. })));
    // A newer schema that is not breaking is accepted.
    database.execute("UPDATE rate_limits_migrations SET breaking = false WHERE version = 99").await;
    assert!(limiter.limit(("a", "k")).await.expect("a decision").is_allowed());
}
