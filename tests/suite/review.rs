//! The guide's page for reviewers is true.

use pg_limiter::migrate::{Migrator, Part, functions};
use pg_limiter::sqlx::{self, AssertSqlSafe, Connection, PgConnection, Row};
use pg_limiter::{Limit, Limiter, Limits, Schema};

use crate::support::{Database, guide};

async fn count(database: &Database, sql: &str) -> i64 {
    sqlx::query_scalar(AssertSqlSafe(sql.to_owned())).fetch_one(&database.pool).await.expect("a number")
}

/// The numbers of tables, views, indexes, functions, and functions that run as their owner.
async fn objects(database: &Database) -> [i64; 5] {
    let relations = |kind: &str| {
        format!("SELECT count(*) FROM pg_class WHERE relnamespace = 'rate_limit'::regnamespace AND relkind = '{kind}'")
    };
    let functions = "SELECT count(*) FROM pg_proc WHERE pronamespace = 'rate_limit'::regnamespace";
    [
        count(database, &relations("r")).await,
        count(database, &relations("v")).await,
        count(database, &relations("i")).await,
        count(database, functions).await,
        count(database, &format!("{functions} AND prosecdef")).await,
    ]
}

#[tokio::test]
async fn the_page_for_reviewers_counts_the_objects_of_each_part() {
    let (core, all) = (Database::empty().await, Database::migrated().await);
    Migrator::default().without_queue(true).run(&core.pool).await.expect("migrate");
    let (core, all) = (objects(&core).await, objects(&all).await);
    let mut table = String::from(
        "| part | tables | views | indexes | functions | that run as their owner |\n|---|---|---|---|---|---|\n",
    );
    let queue: Vec<i64> = all.iter().zip(core).map(|(all, core)| all - core).collect();
    for (part, numbers) in [("limits", &core[..]), ("queue", &queue)] {
        let numbers: Vec<_> = numbers.iter().map(i64::to_string).collect();
        table.push_str(&format!("| {part} | {} |\n", numbers.join(" | ")));
    }
    assert!(guide::chapter("review").contains(&table), "the table should be:\n{table}");
    assert_eq!(all[3], functions(&Schema::default(), Part::ALL).len() as i64);
}

#[tokio::test]
async fn there_is_nothing_that_a_reviewer_would_not_expect() {
    let database = Database::empty().await;
    let outside = "SELECT (SELECT count(*) FROM pg_class WHERE relnamespace <> 'rate_limit'::regnamespace AND relnamespace <> 'pg_toast'::regnamespace)
        + (SELECT count(*) FROM pg_proc WHERE pronamespace <> 'rate_limit'::regnamespace)
        + (SELECT count(*) FROM pg_type WHERE typnamespace NOT IN ('rate_limit'::regnamespace, 'pg_toast'::regnamespace))
        + (SELECT count(*) FROM pg_trigger) + (SELECT count(*) FROM pg_event_trigger) + (SELECT count(*) FROM pg_extension)
        + (SELECT count(*) FROM pg_language) + (SELECT count(*) FROM pg_rewrite WHERE rulename <> '_RETURN')";
    sqlx::query("CREATE SCHEMA rate_limit").execute(&database.pool).await.expect("a schema");
    let before = count(&database, outside).await;
    pg_limiter::migrate::migrate(&database.pool).await.expect("migrate");
    assert_eq!(count(&database, outside).await, before);
    let of_ours = "FROM pg_proc WHERE pronamespace = 'rate_limit'::regnamespace";
    for (what, which) in [
        (
            "pins no search_path",
            "prosecdef AND NOT 'search_path=pg_catalog, pg_temp' = ANY (coalesce(proconfig, '{}'))",
        ),
        (
            "is not in SQL or plpgsql",
            "prolang NOT IN (SELECT oid FROM pg_language WHERE lanname IN ('sql', 'plpgsql'))",
        ),
        ("composes SQL", "prosrc ~* '\\mEXECUTE\\M'"),
        ("catches errors", "prosrc ~* '\\mEXCEPTION\\s+WHEN\\M'"),
        ("can be executed by PUBLIC", "has_function_privilege('public', oid, 'EXECUTE')"),
    ] {
        let names: Vec<String> =
            sqlx::query_scalar(AssertSqlSafe(format!("SELECT proname::text {of_ours} AND ({which})")))
                .fetch_all(&database.pool)
                .await
                .expect("names");
        assert!(names.is_empty(), "{what}: {names:?}");
    }
}

async fn wal(conn: &mut PgConnection) -> i64 {
    let sql = "SELECT (pg_current_wal_insert_lsn() - '0/0')::bigint";
    sqlx::query_scalar(sql).fetch_one(conn).await.expect("a position")
}

/// Other tests of this server write WAL, too: a round in which none does is enough.
#[tokio::test]
async fn a_call_locks_and_writes_what_the_page_for_reviewers_says() {
    let database = Database::migrated().await;
    let limits = Limits::new()
        .define("a", Limit::token_bucket(1e9, std::time::Duration::from_secs(60)))
        .and_then(|limits| limits.define("short", Limit::token_bucket(1, std::time::Duration::from_secs(86_400))))
        .expect("limits");
    let limiter = Limiter::new(database.pool.clone(), limits);
    let mut conn = PgConnection::connect(&database.url).await.expect("a connection");
    assert!(limiter.within(&mut conn).limit(("short", "k")).await.expect("a decision").is_allowed());
    let (mut allowed, mut denied) = (i64::MAX, i64::MAX);
    for _ in 0..20_000 {
        let before = wal(&mut conn).await;
        assert!(limiter.within(&mut conn).limit(("a", "k")).await.expect("a decision").is_allowed());
        let between = wal(&mut conn).await;
        assert!(!limiter.within(&mut conn).limit(("short", "k")).await.expect("a decision").is_allowed());
        let _ = limiter.within(&mut conn).check(("a", "k")).await.expect("a decision");
        allowed = allowed.min(between - before);
        denied = denied.min(wal(&mut conn).await - between);
        if allowed < 400 && denied == 0 {
            break;
        }
    }
    assert!(allowed > 0 && allowed < 400 && denied == 0, "{allowed} and {denied} bytes");

    let mut tx = conn.begin_with("BEGIN ISOLATION LEVEL SERIALIZABLE").await.expect("begin");
    assert!(limiter.within(&mut tx).limit(("a", "k")).await.expect("a decision").is_allowed());
    let sql = "SELECT DISTINCT locktype || ' ' || mode AS taken FROM pg_locks WHERE pid = pg_backend_pid() AND granted
        AND locktype NOT IN ('virtualxid', 'transactionid') AND (relation IS NULL OR relation > 16383) AND mode <> 'AccessShareLock'";
    let rows = sqlx::query(sql).fetch_all(&mut *tx).await.expect("locks");
    for row in rows {
        let taken: String = row.get("taken");
        let is_expected = taken == "relation RowExclusiveLock" || taken.ends_with(" SIReadLock");
        assert!(is_expected, "{taken}");
    }
    tx.rollback().await.expect("rollback");
}
