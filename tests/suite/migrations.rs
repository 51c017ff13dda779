//! Migrations into a database that belongs to an application.

use std::sync::Arc;

use pg_limiter::migrate::{Contents, Drift, MigrateError, Migrator, Part, migrate, migrate_on, script, uninstall};
use pg_limiter::queue::{Job, Queue};
use pg_limiter::sqlx::{self, AssertSqlSafe, Connection, PgConnection, PgPool};
use pg_limiter::{Engine, Limit, Limiter, LimiterConfig, Limits, Schema};

use crate::support::Database;

async fn one<T>(pool: &PgPool, sql: &str) -> T
where
    T: for<'r> sqlx::Decode<'r, sqlx::Postgres> + sqlx::Type<sqlx::Postgres> + Send + Unpin,
{
    sqlx::query_scalar(AssertSqlSafe(sql.to_owned()))
        .fetch_one(pool)
        .await
        .unwrap_or_else(|error| panic!("{sql}: {error}"))
}

/// The migrations of this release.
const ALL: [&str; 2] = ["rate_limits", "queue"];

const LOCKS: &str = "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND database = \
                     (SELECT oid FROM pg_database WHERE datname = current_database())";

async fn twelve_at_once(database: &Database) -> Vec<&'static str> {
    twelve_with(database, Migrator::default()).await
}

/// The migrations that were applied, newest first.
async fn twelve_with(database: &Database, migrator: Migrator) -> Vec<&'static str> {
    let barrier = Arc::new(tokio::sync::Barrier::new(12));
    let tasks: Vec<_> = (0..12)
        .map(|_| {
            let (url, barrier, migrator) = (database.url.clone(), barrier.clone(), migrator.clone());
            tokio::spawn(async move {
                let pool = Database::pool(&url, 1).await;
                barrier.wait().await;
                migrator.run(&pool).await
            })
        })
        .collect();
    let mut applied = Vec::new();
    for task in tasks {
        applied.extend(task.await.expect("a task").expect("migrated").applied);
    }
    applied.sort_unstable_by(|a, b| b.cmp(a));
    applied
}

#[tokio::test(flavor = "multi_thread")]
async fn twelve_concurrent_migrations_apply_each_version_once() {
    for _ in 0..5 {
        let database = Database::empty().await;
        assert_eq!(twelve_at_once(&database).await, ALL, "each migration is applied once");
        assert_eq!(one::<i64>(&database.pool, LOCKS).await, 0);
        assert_eq!(migrate(&database.pool).await.expect("again").applied, [""; 0]);
    }
}

/// An engine without the function, and one whose function reports that it is not implemented.
#[tokio::test(flavor = "multi_thread")]
async fn concurrent_migrations_succeed_without_advisory_locks() {
    let rename = "ALTER FUNCTION pg_catalog.pg_advisory_xact_lock(bigint) RENAME TO hidden_lock";
    let replace = "DO $$ BEGIN
           SET LOCAL allow_system_table_mods = on;
         EXCEPTION WHEN others THEN -- Up to PostgreSQL 11 it is the server's to set.
         END $$;
         ALTER FUNCTION pg_catalog.pg_advisory_xact_lock(bigint) RENAME TO hidden_lock;
         CREATE FUNCTION pg_catalog.pg_advisory_xact_lock(bigint) RETURNS void LANGUAGE plpgsql AS
         $$ BEGIN RAISE 'advisory locks are not yet implemented' USING ERRCODE = 'feature_not_supported'; END $$";
    for engine in [rename, replace] {
        for _ in 0..3 {
            let database = Database::empty().await;
            database.execute(engine).await;
            let error = sqlx::query("SELECT pg_advisory_xact_lock(1)").execute(&database.pool).await;
            assert!(error.is_err(), "the engine still has advisory locks");
            assert_eq!(twelve_at_once(&database).await, ALL);
        }
    }
}

/// As on an engine whose schema changes are not transactional and conflict at random.
#[tokio::test(flavor = "multi_thread")]
async fn concurrent_migrations_succeed_statement_by_statement() {
    let clashes = "CREATE SEQUENCE changes;
         CREATE FUNCTION clash() RETURNS event_trigger LANGUAGE plpgsql AS $$ BEGIN
           IF nextval('public.changes') % 23 = 0 THEN -- A block has up to 17 changes.
             RAISE 'schema version mismatch' USING ERRCODE = 'serialization_failure';
           END IF;
         END $$;
         CREATE EVENT TRIGGER clash ON ddl_command_end EXECUTE FUNCTION clash()";
    let stepwise = Migrator::default().engine(Engine::Yugabyte);
    for clash in [false, true] {
        let database = Database::empty().await;
        if clash {
            database.execute(clashes).await;
        }
        assert_eq!(twelve_with(&database, stepwise.clone()).await, ALL, "each migration is applied once");
        assert_eq!(one::<i64>(&database.pool, LOCKS).await, 0, "advisory locks were taken");
        if clash {
            assert!(one::<i64>(&database.pool, "SELECT last_value FROM changes").await > 70, "there were conflicts");
        }
        // The result is the same as that of a migration in one transaction.
        let described = "SELECT string_agg(d, ' ' ORDER BY d) FROM (
             SELECT pg_get_functiondef(oid) || coalesce(proacl::text, '') AS d FROM pg_proc
             WHERE pronamespace = 'rate_limit'::regnamespace UNION ALL
             SELECT indexdef FROM pg_indexes WHERE schemaname = 'rate_limit' UNION ALL
             SELECT attrelid::regclass || attname || attnum || format_type(atttypid, NULL) FROM pg_attribute
             WHERE attrelid IN (SELECT oid FROM pg_class WHERE relnamespace = 'rate_limit'::regnamespace AND relkind IN ('r', 'v'))) AS x";
        let usual = Database::empty().await;
        Migrator::default().run(&usual.pool).await.expect("migrate");
        let (stepped, usual): (String, String) =
            (one(&database.pool, described).await, one(&usual.pool, described).await);
        assert!(stepped == usual, "the result differs from that of a migration in one transaction");
        assert_eq!(migrate(&database.pool).await.expect("again").applied, [""; 0]);
    }
}

/// If a migration ends half-way, the next run finishes it.
#[tokio::test]
async fn an_interrupted_migration_is_finished_by_the_next_run() {
    let database = Database::empty().await;
    database.execute("CREATE SCHEMA rate_limit; CREATE VIEW rate_limit.groups AS SELECT 1 AS one").await;
    let stepwise = Migrator::default().engine(Engine::Yugabyte);
    let error = stepwise.run(&database.pool).await.expect_err("something is in the way");
    assert!(matches!(&error, MigrateError::Occupied { table, .. } if table == "groups"), "{error}");
    database.execute("DROP VIEW rate_limit.groups; CREATE TYPE rate_limit.groups AS (one int)").await;
    let error = stepwise.run(&database.pool).await.expect_err("something else is in the way");
    assert!(matches!(error, MigrateError::Busy { .. } | MigrateError::Database { .. }), "{error}");
    assert_eq!(one::<i32>(&database.pool, "SELECT max(version) FROM rate_limit.migrations").await, 1);
    database.execute("DROP TYPE rate_limit.groups").await;
    assert_eq!(stepwise.run(&database.pool).await.expect("the rest").applied, ["queue"]);
}

#[tokio::test]
async fn the_applications_own_migrations_and_settings_are_left_alone() {
    let database = Database::empty().await;
    database
        .execute("CREATE TABLE _sqlx_migrations (version bigint PRIMARY KEY); INSERT INTO _sqlx_migrations VALUES (20240101000000)")
        .await;
    let mut conn = PgConnection::connect(&database.url).await.expect("a connection");
    sqlx::raw_sql("CREATE SCHEMA app; SET search_path = app, pg_catalog; SET lock_timeout = '7s'")
        .execute(&mut conn)
        .await
        .expect("settings");
    let report = migrate_on(&mut conn).await.expect("migrated");
    assert_eq!((report.version, &*report.applied), (1, &ALL[..]));
    for (setting, value) in [("search_path", "app, pg_catalog"), ("lock_timeout", "7s")] {
        let now: String = sqlx::query_scalar("SELECT current_setting($1)")
            .bind(setting)
            .fetch_one(&mut conn)
            .await
            .expect("a setting");
        assert_eq!(now, value);
    }
    assert_eq!(one::<i64>(&database.pool, "SELECT count(*) FROM _sqlx_migrations").await, 1);
    assert_eq!(
        one::<i64>(&database.pool, "SELECT count(*) FROM pg_class WHERE relnamespace = 'app'::regnamespace").await,
        0
    );
}

#[tokio::test]
async fn a_migration_commits_or_rolls_back_with_the_callers_transaction() {
    let database = Database::empty().await;
    let mut tx = database.pool.begin().await.expect("begin");
    migrate_on(&mut tx).await.expect("migrated");
    tx.rollback().await.expect("rollback");
    assert!(one::<bool>(&database.pool, "SELECT to_regclass('rate_limit.rate_limits') IS NULL").await);
    let mut tx = database.pool.begin().await.expect("begin");
    migrate_on(&mut tx).await.expect("migrated");
    tx.commit().await.expect("commit");
    assert_eq!(database.rows().await, 0);
    assert_eq!(one::<i64>(&database.pool, LOCKS).await, 0);
}

/// The driver does not know of this BEGIN.
#[tokio::test]
async fn a_migration_joins_a_transaction_begun_by_a_statement() {
    let database = Database::empty().await;
    let mut conn = PgConnection::connect(&database.url).await.expect("a connection");
    for end in ["ROLLBACK", "COMMIT"] {
        sqlx::raw_sql("BEGIN; CREATE TABLE mine (id int)").execute(&mut conn).await.expect("begin");
        migrate_on(&mut conn).await.expect("migrated");
        sqlx::raw_sql(end).execute(&mut conn).await.expect("the end");
        for table in ["mine", "rate_limit.rate_limits"] {
            let there = format!("SELECT to_regclass('{table}') IS NOT NULL");
            assert_eq!(one::<bool>(&database.pool, &there).await, end == "COMMIT", "{table} after {end}");
        }
    }
}

/// Concurrent migrations where transactions are SERIALIZABLE by default, and a migration by a role that may only read.
#[tokio::test(flavor = "multi_thread")]
async fn migrations_work_at_any_default_isolation_and_for_read_only_roles() {
    let database = Database::empty().await;
    let name: String = one(&database.pool, "SELECT current_database()::text").await;
    database.execute(&format!("ALTER DATABASE {name} SET default_transaction_isolation = 'serializable'")).await;
    assert_eq!(twelve_at_once(&database).await, ALL);
    let role = format!("looker_{}", std::process::id());
    database
        .execute(&format!("DROP ROLE IF EXISTS {role}; CREATE ROLE {role}; GRANT USAGE ON SCHEMA rate_limit TO {role}"))
        .await;
    let mut conn = PgConnection::connect(&database.url).await.expect("a connection");
    sqlx::query(AssertSqlSafe(format!("SET ROLE {role}"))).execute(&mut conn).await.expect("set role");
    assert_eq!(migrate_on(&mut conn).await.expect("nothing to do").applied, [""; 0]);
    conn.close().await.expect("close");
    database.execute(&format!("DROP OWNED BY {role}; DROP ROLE {role}")).await;
}

#[tokio::test]
async fn a_migration_into_a_chosen_schema_works() {
    for name in ["Rate \"limits\"; --", "public"] {
        works_in(Schema::new(name).expect("a schema")).await;
    }
}

async fn works_in(schema: Schema) {
    let database = Database::empty().await;
    database
        .execute("CREATE TABLE groups_of_mine (id int); CREATE FUNCTION mine() RETURNS int LANGUAGE sql AS 'SELECT 1'")
        .await;
    Migrator::new(schema.clone()).run(&database.pool).await.expect("migrated");
    assert!(one::<bool>(&database.pool, "SELECT to_regclass('rate_limit.rate_limits') IS NULL").await);
    let mut config = LimiterConfig::default();
    config.schema = schema.clone();
    let limits =
        Limits::new().define("a", Limit::token_bucket(1, std::time::Duration::from_secs(60))).expect("a limit");
    let limiter = Limiter::with_config(database.pool.clone(), limits, config);
    assert!(limiter.limit(("a", "k")).await.expect("a decision").is_allowed());
    assert!(limiter.limit(("a", "k")).await.expect("a decision").is_denied());
    assert_eq!(limiter.reset_all_keys("a").await.expect("reset"), 1);
    assert_eq!(Migrator::new(schema.clone()).check(&database.pool).await.expect("checked"), []);
    // It exists beside the one in `rate_limit`, and is dropped separately.
    migrate(&database.pool).await.expect("migrated");
    database.execute(&uninstall(&schema)).await;
    if schema.name() == "public" {
        // The application's objects stay.
        let left = "SELECT (SELECT count(*) FROM pg_class WHERE relnamespace = 'public'::regnamespace) + \
                    (SELECT count(*) FROM pg_proc WHERE pronamespace = 'public'::regnamespace)";
        assert_eq!(one::<i64>(&database.pool, left).await, 2);
    } else {
        database.execute(&format!("DROP SCHEMA \"{}\"", schema.name().replace('"', "\"\""))).await;
    }
    assert_eq!(database.rows().await, 0);
}

/// One newer release that changed nothing this one needs, and one that did.
#[tokio::test]
async fn a_newer_schema_is_rejected_only_if_it_is_breaking() {
    let database = Database::migrated().await;
    database.execute("INSERT INTO rate_limit.migrations VALUES (98, 'from the future', '', '99.0.0')").await;
    let report = migrate(&database.pool).await.expect("it works with that");
    assert_eq!((report.version, report.applied.len(), report.functions.len()), (98, 0, 0));
    assert_eq!(Migrator::default().check(&database.pool).await.expect("checked"), []);
    let limits =
        || Limits::new().define("a", Limit::token_bucket(1, std::time::Duration::from_secs(60))).expect("a limit");
    assert!(database.limiter(limits()).limit(("a", "k")).await.expect("a decision").is_allowed());

    database.execute("INSERT INTO rate_limit.migrations VALUES (99, 'another', '', '99.0.0', true)").await;
    let error = migrate(&database.pool).await.expect_err("too new");
    assert!(matches!(error, MigrateError::SchemaTooNew { found: 99, known: 1, .. }), "{error}");
    assert!(error.to_string().contains("update pg-limiter"), "{error}");
    assert_eq!(one::<i64>(&database.pool, LOCKS).await, 0);
}

/// A view with the table's name is in the way, and is dropped later.
#[tokio::test]
async fn a_failed_migration_leaves_no_lock_and_no_partial_changes() {
    let database = Database::empty().await;
    database.execute("CREATE SCHEMA rate_limit; CREATE VIEW rate_limit.rate_limits AS SELECT 1 AS one").await;
    let pool = Database::pool(&database.url, 1).await;
    for _ in 0..2 {
        let error = migrate(&pool).await.expect_err("a view is in the way");
        assert!(
            matches!(error, MigrateError::Occupied { .. }) && error.to_string().contains("another schema"),
            "{error}"
        );
        assert_eq!(one::<i64>(&database.pool, LOCKS).await, 0);
    }
    assert!(one::<bool>(&database.pool, "SELECT to_regclass('rate_limit.migrations') IS NULL").await);
    assert_eq!(
        one::<i64>(&database.pool, "SELECT count(*) FROM pg_proc WHERE pronamespace = 'rate_limit'::regnamespace")
            .await,
        0
    );
    database.execute("DROP VIEW rate_limit.rate_limits; CREATE TABLE rate_limit.rate_limits (id int)").await;
    assert!(matches!(migrate(&pool).await, Err(MigrateError::Occupied { .. })));
    // A failure in the middle of the run: the run is rolled back.
    database
        .execute(
            "DROP TABLE rate_limit.rate_limits; CREATE FUNCTION rate_limit._clock() RETURNS text LANGUAGE sql AS 'SELECT 1::text'",
        )
        .await;
    let error = migrate(&pool).await;
    database.execute("DROP FUNCTION rate_limit._clock()").await;
    assert!(matches!(error, Err(MigrateError::Database { .. })), "{error:?}");
    assert_eq!(one::<i64>(&database.pool, LOCKS).await, 0);
    assert!(one::<bool>(&database.pool, "SELECT to_regclass('rate_limit.rate_limits') IS NULL").await);
    migrate(&pool).await.expect("nothing is in the way");
}

/// In a schema with other objects, functions of the application keep their bodies, and its tables their privileges.
#[tokio::test]
async fn objects_of_the_application_are_left_alone() {
    let database = Database::empty().await;
    let public = Schema::new("public").expect("a schema");
    let reset = "CREATE FUNCTION public.reset(name text) RETURNS bigint LANGUAGE sql AS 'SELECT 42::bigint'";
    database.execute(reset).await;
    let error = Migrator::new(public.clone()).run(&database.pool).await.expect_err("a function is in the way");
    assert!(matches!(&error, MigrateError::Occupied { table, .. } if table == "reset(text)"), "{error}");
    assert_eq!(one::<i64>(&database.pool, "SELECT public.reset('a')").await, 42);
    database.execute("DROP FUNCTION public.reset(text)").await;

    // Without the queue, its names are the application's.
    let lean = Migrator::new(public).without_queue(true);
    let jobs = "CREATE TABLE public.jobs (id int); GRANT INSERT ON public.jobs TO PUBLIC;
        CREATE FUNCTION mine() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RETURN NEW; END $$;
        CREATE TRIGGER mine BEFORE INSERT ON public.jobs FOR EACH ROW EXECUTE FUNCTION mine()";
    database.execute(jobs).await;
    lean.run(&database.pool).await.expect("migrated");
    assert_eq!(lean.check(&database.pool).await.expect("checked"), []);
    database.execute("ALTER FUNCTION public._held STABLE").await;
    lean.run(&database.pool).await.expect("migrated");
    let granted = "SELECT relacl::text LIKE '%=a/%' FROM pg_class WHERE oid = 'public.jobs'::regclass";
    assert!(one::<bool>(&database.pool, granted).await);
}

#[tokio::test]
async fn a_role_without_create_gets_an_error_that_names_the_grants() {
    for (schema, grant) in [("public", "CREATE ON SCHEMA public"), ("rate_limit", "CREATE ON DATABASE")] {
        needs(&Schema::new(schema).expect("a schema"), grant).await;
    }
}

/// The schema `public` exists, and `rate_limit` does not.
async fn needs(schema: &Schema, grant: &str) {
    let database = Database::empty().await;
    let migrator = Migrator::new(schema.clone());
    let grant = if grant.ends_with("DATABASE") { format!("{grant} {}", database.name) } else { grant.to_owned() };
    let role = format!("poor_{}", std::process::id());
    database
        .execute(&format!("DROP ROLE IF EXISTS {role}; CREATE ROLE {role}; REVOKE CREATE ON SCHEMA public FROM PUBLIC"))
        .await;
    let mut conn = PgConnection::connect(&database.url).await.expect("a connection");
    sqlx::query(AssertSqlSafe(format!("SET ROLE {role}"))).execute(&mut conn).await.expect("set role");
    let error = migrator.run_on(&mut conn).await.expect_err("no privilege");
    assert!(error.to_string().contains("needs CREATE"), "{error}");
    database.execute(&format!("GRANT {grant} TO {role}")).await;
    migrator.run_on(&mut conn).await.expect("the grants of the message are sufficient");
    conn.close().await.expect("close");
    database.execute(&format!("DROP OWNED BY {role}; DROP ROLE {role}")).await;
}

/// An event trigger can refuse schema changes with the SQLSTATE of a missing privilege. Its hint says what to do.
#[tokio::test]
async fn a_refusal_of_an_event_trigger_is_reported_with_its_hint() {
    let database = Database::empty().await;
    let frozen = "CREATE FUNCTION public.refuse() RETURNS event_trigger LANGUAGE plpgsql AS $$ BEGIN
             RAISE 'schema changes are frozen' USING ERRCODE = 'insufficient_privilege', HINT = 'Ask the DBA.', DETAIL = 'secret';
         END $$;
         CREATE EVENT TRIGGER refuse ON ddl_command_start EXECUTE FUNCTION public.refuse()";
    database.execute(frozen).await;
    let error = migrate(&database.pool).await.expect_err("refused");
    let text = error.to_string();
    assert!(matches!(error, MigrateError::Privilege { .. }), "{text}");
    assert!(text.contains("schema changes are frozen (SQLSTATE 42501); hint of the server: Ask the DBA;"), "{text}");
    assert!(!text.contains("CREATE and USAGE") && !text.contains("secret"), "{text}");
}

/// The files are run as they are, as any tool can, and twice; then the schema is uninstalled.
#[tokio::test]
async fn the_printed_sql_is_the_whole_schema() {
    for schema in [Schema::default(), Schema::new("public").expect("a schema")] {
        is_whole(&schema).await;
    }
}

async fn is_whole(schema: &Schema) {
    let database = Database::empty().await;
    for _ in 0..2 {
        database.execute(&script(schema, Contents::All, Part::ALL)).await;
    }
    let limits =
        Limits::new().define("a", Limit::token_bucket(1, std::time::Duration::from_secs(60))).expect("a limit");
    let mut config = LimiterConfig::default();
    config.schema = schema.clone();
    let limiter = Limiter::with_config(database.pool.clone(), limits, config);
    assert!(limiter.limit(("a", "k")).await.expect("a decision").is_allowed());
    // `migrate` adopts this schema: there is nothing to do, for any role.
    let nothing = Migrator::new(schema.clone()).run(&database.pool).await.expect("migrated");
    assert_eq!((nothing.applied, nothing.functions), (vec![], vec![]));
    assert!(limiter.limit(("a", "k")).await.expect("a decision").is_denied(), "the balances were kept");
    database.execute(&uninstall(schema)).await;
    let left = format!(
        "SELECT (SELECT count(*) FROM pg_class WHERE relnamespace = '{schema}'::regnamespace) + \
         (SELECT count(*) FROM pg_proc WHERE pronamespace = '{schema}'::regnamespace)"
    );
    assert_eq!(one::<i64>(&database.pool, &left).await, 0);
}

/// Without the queue, every function of the core works.
#[tokio::test]
async fn the_queue_can_be_left_out_and_added_later() {
    let lean = Migrator::default().without_queue(true);
    let queues = "SELECT count(*) FROM pg_class AS c JOIN pg_namespace AS n ON n.oid = c.relnamespace \
                  WHERE n.nspname = 'rate_limit' AND c.relname ~ '^(jobs|groups|workers|queue)'";
    for printed in [false, true] {
        let database = Database::empty().await;
        if printed {
            database.execute(&script(&Schema::default(), Contents::All, &[Part::Core])).await;
        } else {
            assert_eq!(lean.run(&database.pool).await.expect("migrated").applied, ["rate_limits"]);
        }
        assert_eq!(one::<i64>(&database.pool, queues).await, 0);
        assert_eq!(lean.check(&database.pool).await.expect("checked"), []);
        let missing = [Drift::MigrationMissing { version: 1, name: "queue" }];
        assert_eq!(Migrator::default().check(&database.pool).await.expect("checked"), missing);
        let nothing = lean.run(&database.pool).await.expect("again");
        assert_eq!((nothing.applied.len(), nothing.functions.len()), (0, 0));

        let limits = Limits::new()
            .define("a", Limit::token_bucket(1, std::time::Duration::from_secs(60)))
            .and_then(|limits| limits.define("slots", Limit::concurrency(1)))
            .expect("limits");
        let limiter = database.limiter(limits);
        assert!(limiter.limit(("a", "k")).await.expect("a decision").is_allowed());
        assert!(limiter.limit(("a", "k")).await.expect("a decision").is_denied());
        for _ in 0..2 {
            let lease = limiter.acquire(("slots", "k")).await.expect("an answer").enforce().expect("a lease");
            lease.release().await.expect("released");
        }
        let lease = limiter.acquire(("slots", "k")).await.expect("an answer").enforce().expect("a lease");
        let reset = "SELECT rate_limit.reset('slots', 'k')";
        assert_eq!(one::<i64>(&database.pool, reset).await, 1);
        drop(lease);
        let forgotten = limiter.forget("k").await.expect("forgotten");
        assert_eq!((forgotten.jobs, forgotten.running), (0, 0));
        let queue = Queue::new(&limiter, "mails").expect("a queue");
        let job = || Job::new(("a", "k"), &1).expect("a job");
        let error = queue.enqueue(job()).await.expect_err("no queue");
        assert!(matches!(error, pg_limiter::Error::SchemaMissing { .. }), "{error}");

        // A plain run adds it. Then it stays.
        let added = migrate(&database.pool).await.expect("migrated");
        assert_eq!((&*added.applied, &*added.changed_by_hand), (&["queue"][..], &[""; 0][..]));
        database.execute(&script(&Schema::default(), Contents::All, &[Part::Core])).await;
        assert_eq!(lean.run(&database.pool).await.expect("again").functions, [""; 0]);
        for migrator in [&lean, &Migrator::default()] {
            assert_eq!(migrator.check(&database.pool).await.expect("checked"), []);
        }
        queue.enqueue(job()).await.expect("an answer").enforce().expect("a ticket");
        assert_eq!(limiter.forget("k").await.expect("forgotten").jobs, 1);
        database.execute(&uninstall(&Schema::default())).await;
        assert!(one::<bool>(&database.pool, "SELECT to_regclass('rate_limit.rate_limits') IS NULL").await);
    }
}

/// Updates are HOT: no index has a column that changes, and the page has room.
#[tokio::test]
async fn rows_are_updated_in_place() {
    let database = Database::migrated().await;
    let limits =
        Limits::new().define("a", Limit::token_bucket(1e6, std::time::Duration::from_secs(60))).expect("a limit");
    let limiter = Limiter::new(database.pool.clone(), limits);
    let mut conn = PgConnection::connect(&database.url).await.expect("a connection");
    for _ in 0..500 {
        let _ = limiter.within(&mut conn).limit(("a", "k")).await.expect("a decision");
    }
    conn.close().await.expect("close");
    // The first call inserts the row; a slow decision writes twice. The counters arrive a moment later.
    let updates = "SELECT n_tup_upd >= 499 AND n_tup_hot_upd >= n_tup_upd - 10 FROM pg_stat_user_tables \
                   WHERE relname = 'rate_limits'";
    let mut arrived = false;
    for _ in 0..50 {
        arrived = one::<Option<bool>>(&database.pool, updates).await == Some(true);
        if arrived {
            break;
        }
        tokio::time::sleep(std::time::Duration::from_millis(100)).await;
    }
    assert!(arrived, "updates were not in place");
}
