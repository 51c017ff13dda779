//! Installations in a schema that has other objects, too, and under settings and objects of other roles.

use pg_limiter::migrate::{Contents, Drift, MigrateError, Migrator, Part, script, uninstall};
use pg_limiter::sqlx::{self, AssertSqlSafe, PgPool};
use pg_limiter::{Limit, Limits, Schema, TransactionLimiter};

use crate::support::Database;

fn public() -> Schema {
    Schema::new("public").expect("a schema")
}

async fn text(pool: &PgPool, sql: &str) -> String {
    sqlx::query_scalar(AssertSqlSafe(sql.to_owned())).fetch_one(pool).await.expect("a text")
}

const OF_THE_APPLICATION: &str = "CREATE TABLE public.jobs (id serial PRIMARY KEY, title text NOT NULL);
    INSERT INTO public.jobs (title) VALUES ('mine');
    CREATE TABLE public.groups (id integer); CREATE TABLE public.workers (id integer);
    CREATE VIEW public.queue_jobs AS SELECT 1 AS x;
    CREATE SEQUENCE public._test_clock;
    CREATE FUNCTION public.pause(text) RETURNS void LANGUAGE sql AS 'SELECT';
    CREATE FUNCTION public.prune() RETURNS void LANGUAGE sql AS 'SELECT';
    CREATE FUNCTION public.pause(queue text, \"group\" text) RETURNS boolean LANGUAGE sql AS 'SELECT true'";

const ALL_OBJECTS: &str = "SELECT string_agg(o, ', ' ORDER BY o) FROM (
    SELECT relname::text FROM pg_class WHERE relnamespace = 'public'::regnamespace AND relkind <> 'i'
    UNION ALL SELECT oid::regprocedure::text FROM pg_proc WHERE pronamespace = 'public'::regnamespace) AS x (o)";

/// Without the queue, the application's objects may have the names of the queue's. They stay when the limiter is removed.
#[tokio::test]
async fn uninstalling_drops_only_what_was_installed() {
    let database = Database::empty().await;
    database.execute(OF_THE_APPLICATION).await;
    let before = text(&database.pool, ALL_OBJECTS).await;
    Migrator::new(public()).without_queue(true).run(&database.pool).await.expect("migrated");
    assert_ne!(text(&database.pool, ALL_OBJECTS).await, before);
    database.execute(&uninstall(&public())).await;
    assert_eq!(text(&database.pool, ALL_OBJECTS).await, before);
    assert_eq!(text(&database.pool, "SELECT title FROM public.jobs").await, "mine");
    // Where the limiter was never installed, or is removed already, nothing is dropped.
    let records = "CREATE TABLE public.answers (id integer); CREATE TABLE public.objects (object text PRIMARY KEY);
        CREATE TABLE public.migrations (version integer, name text)";
    database.execute(records).await;
    let before = text(&database.pool, ALL_OBJECTS).await;
    database.execute(&uninstall(&public())).await;
    assert_eq!(text(&database.pool, ALL_OBJECTS).await, before);
}

/// If a view of the application depends on the limiter, nothing is removed.
#[tokio::test]
async fn uninstalling_removes_all_or_nothing() {
    let database = Database::migrated().await;
    database.execute("CREATE VIEW public.mine AS SELECT * FROM rate_limit.buckets").await;
    let removed = sqlx::raw_sql(AssertSqlSafe(uninstall(&Schema::default()))).execute(&database.pool).await;
    assert!(removed.expect_err("something depends on it").to_string().contains("depend"));
    assert_eq!(Migrator::default().check(&database.pool).await.expect("checked"), []);
    database.execute("DROP VIEW public.mine").await;
    database.execute(&uninstall(&Schema::default())).await;
    let left = "SELECT count(*)::text FROM pg_class WHERE relnamespace = 'rate_limit'::regnamespace";
    assert_eq!(text(&database.pool, left).await, "0");
}

/// After a restore of the definitions without the rows, the records are empty.
#[tokio::test]
async fn uninstalling_needs_the_records() {
    let database = Database::migrated().await;
    let count = "SELECT count(*)::text FROM pg_class WHERE relnamespace = 'rate_limit'::regnamespace";
    let before = text(&database.pool, count).await;
    for records in ["DELETE FROM rate_limit.migrations", "DELETE FROM rate_limit.objects"] {
        database.execute(records).await;
        database.execute(&uninstall(&Schema::default())).await;
        assert_eq!(text(&database.pool, count).await, before, "{records}");
        assert_eq!(text(&database.pool, "SELECT current_setting('search_path')").await, "\"$user\", public");
    }
    Migrator::default().run(&database.pool).await.expect("migrated");
    database.execute(&uninstall(&Schema::default())).await;
    assert_eq!(text(&database.pool, count).await, "0");
}

/// Objects of the application with names of the queue may have any owner.
#[tokio::test]
async fn without_the_queue_its_names_are_the_applications() {
    let database = Database::empty().await;
    let role = format!("app_of_{}", database.name);
    database.execute(OF_THE_APPLICATION).await;
    let give = format!(
        "CREATE ROLE {role}; ALTER TABLE public.jobs OWNER TO {role}; ALTER FUNCTION public.pause(text, text) OWNER TO {role}"
    );
    database.execute(&give).await;
    let lean = Migrator::new(public()).without_queue(true);
    for _ in 0..2 {
        lean.run(&database.pool).await.expect("migrated");
        assert_eq!(lean.check(&database.pool).await.expect("checked"), []);
    }
    database.execute(&format!("DROP OWNED BY {role} CASCADE; DROP ROLE {role}")).await;
}

/// `migrate` and the printed SQL put nothing in the place of the application's.
#[tokio::test]
async fn the_printed_sql_adopts_no_object_of_the_application() {
    for table in
        ["limits (id integer)", "buckets (id integer)", "objects (object text PRIMARY KEY)", "answers (id integer)"]
    {
        let database = Database::empty().await;
        database.execute(&format!("CREATE TABLE public.{table}")).await;
        let name = table.split(' ').next().unwrap_or_default();
        let error = Migrator::new(public()).run(&database.pool).await.expect_err("refused");
        assert!(matches!(&error, MigrateError::Occupied { table, .. } if table == name), "{error}");
        let printed = script(&public(), Contents::All, Part::ALL);
        let error = sqlx::raw_sql(AssertSqlSafe(printed)).execute(&database.pool).await.expect_err("refused");
        assert!(error.to_string().contains(&format!("the relation {name} is not")), "{error}");
    }
}

/// Up to PostgreSQL 14, every role may create functions in `public`. A migration and its check run none of them.
#[tokio::test]
async fn migrating_and_checking_run_no_functions_of_the_search_path() {
    let database = Database::empty().await;
    // They match the arguments better than those of pg_catalog.
    let hostile =
        "CREATE FUNCTION public.fail() RETURNS text LANGUAGE plpgsql AS $$ BEGIN RAISE EXCEPTION 'hostile'; END $$;
        CREATE FUNCTION public.array_to_string(text[], text) RETURNS text LANGUAGE sql AS 'SELECT public.fail()';
        CREATE FUNCTION public.array_to_string(name[], text) RETURNS text LANGUAGE sql AS 'SELECT public.fail()';
        CREATE FUNCTION public.array_remove(text[], text) RETURNS text[] LANGUAGE sql AS 'SELECT ARRAY[public.fail()]';
        CREATE FUNCTION public.concat_ws(text, text, text) RETURNS text LANGUAGE sql AS 'SELECT public.fail()';
        CREATE FUNCTION public.join(name, name) RETURNS text LANGUAGE sql AS 'SELECT public.fail()';
        CREATE OPERATOR public.|| (leftarg = name, rightarg = name, function = public.join)";
    database.execute(hostile).await;
    let trusting = Migrator::default();
    trusting.check(&database.pool).await.expect("checked");
    trusting.run(&database.pool).await.expect("migrated");
    assert_eq!(trusting.check(&database.pool).await.expect("checked"), []);
    let mut conn = database.pool.acquire().await.expect("a connection");
    assert_eq!(trusting.check_on(&mut conn).await.expect("checked"), []);
    database.execute(&uninstall(&Schema::default())).await;
    database.execute(&script(&Schema::default(), Contents::All, Part::ALL)).await;
    assert_eq!(trusting.check(&database.pool).await.expect("checked"), []);
}

/// Settings that change how the server prints definitions: a migration changes no privileges, and a check finds no difference.
#[tokio::test]
async fn settings_of_the_output_make_no_difference() {
    let settings = [
        "quote_all_identifiers = on",
        "intervalstyle = 'iso_8601'",
        "intervalstyle = 'sql_standard'",
        "intervalstyle = 'postgres_verbose'",
    ];
    for setting in settings {
        let database = Database::migrated().await;
        let role = format!("app_of_{}", database.name);
        let granted = "SELECT count(*)::text FROM pg_proc AS p, aclexplode(p.proacl) AS a
            WHERE p.pronamespace = 'rate_limit'::regnamespace AND a.grantee <> p.proowner";
        database
            .execute(&format!("CREATE ROLE {role}; GRANT EXECUTE ON ALL FUNCTIONS IN SCHEMA rate_limit TO {role}"))
            .await;
        let grants = text(&database.pool, granted).await;
        database.execute(&format!("ALTER DATABASE {} SET {setting}", database.name)).await;
        let pool = Database::pool(&database.url, 2).await;
        assert_eq!(Migrator::default().check(&pool).await.expect("checked"), [], "{setting}");
        sqlx::raw_sql("ALTER FUNCTION rate_limit._held STABLE").execute(&pool).await.expect("changed");
        let report = Migrator::default().run(&pool).await.expect("migrated");
        assert_eq!(report.functions.len(), 1, "{setting}");
        sqlx::raw_sql(AssertSqlSafe(script(&Schema::default(), Contents::All, Part::ALL)))
            .execute(&pool)
            .await
            .expect("again");
        assert_eq!(text(&pool, granted).await, grants, "{setting}");
        assert_eq!(Migrator::default().check(&database.pool).await.expect("checked"), [], "{setting}");
        database.execute(&format!("DROP OWNED BY {role}; DROP ROLE {role}")).await;
    }
}

/// Developers let PL/pgSQL check what assignments leave out.
#[tokio::test]
async fn limits_are_stored_where_assignments_are_checked() {
    let database = Database::migrated().await;
    database.execute(&format!("ALTER DATABASE {} SET plpgsql.extra_errors = 'all'", database.name)).await;
    let pool = Database::pool(&database.url, 1).await;
    let define = "SELECT rate_limit.define('a', kind => 'token_bucket', rate => 10, period => '1 minute')::text";
    assert_eq!(text(&pool, define).await, "true");
    assert_eq!(text(&pool, "SELECT ok::text FROM rate_limit.limit('a', 'k')").await, "true");
}

/// The functions of a renamed schema name the former one: a migration replaces them.
#[tokio::test]
async fn a_renamed_schema_is_repaired() {
    let database = Database::migrated().await;
    database.execute("ALTER SCHEMA rate_limit RENAME TO my_rate_limit").await;
    let schema = Schema::new("my_rate_limit").expect("a schema");
    let migrator = Migrator::new(schema.clone());
    let found = migrator.check(&database.pool).await.expect("checked");
    assert!(
        found.iter().any(|drift| matches!(drift, Drift::FunctionChanged { .. } | Drift::FunctionOutdated { .. })),
        "{found:?}"
    );
    migrator.run(&database.pool).await.expect("migrated");
    assert_eq!(migrator.check(&database.pool).await.expect("checked"), []);
    let limits =
        Limits::new().define("a", Limit::token_bucket(1, std::time::Duration::from_secs(60))).expect("a limit");
    let limits = TransactionLimiter::in_schema(limits, schema);
    let mut conn = database.pool.acquire().await.expect("a connection");
    assert!(limits.within(&mut conn).limit(("a", "k")).await.expect("a decision").is_allowed());
}

/// Default privileges on schemas give other roles no right on the limiter's.
#[tokio::test]
async fn a_new_schema_has_no_default_privileges() {
    for printed in [false, true] {
        let database = Database::empty().await;
        let role = format!("dev_of_{}", database.name);
        database
            .execute(&format!("CREATE ROLE {role}; ALTER DEFAULT PRIVILEGES GRANT ALL ON SCHEMAS TO {role}, PUBLIC"))
            .await;
        match printed {
            true => database.execute(&script(&Schema::default(), Contents::All, Part::ALL)).await,
            false => _ = Migrator::default().run(&database.pool).await.expect("migrated"),
        }
        assert_eq!(Migrator::default().check(&database.pool).await.expect("checked"), []);
        let rights = "SELECT count(*)::text FROM pg_namespace AS n, aclexplode(n.nspacl) AS a
            WHERE n.nspname = 'rate_limit' AND a.grantee <> n.nspowner";
        assert_eq!(text(&database.pool, rights).await, "0");
        database
            .execute(&format!("ALTER DEFAULT PRIVILEGES REVOKE ALL ON SCHEMAS FROM {role}, PUBLIC; DROP ROLE {role}"))
            .await;
    }
}
