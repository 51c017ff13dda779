//! Stored limits: rules in the database, under which SQL calls take tokens by name, and which programs read and follow.

use std::time::Duration;

use pg_limiter::migrate::Use;
use pg_limiter::sqlx::postgres::PgListener;
use pg_limiter::sqlx::{self, AssertSqlSafe, Connection, PgConnection, PgPool};
use pg_limiter::{Error, Limit, Limits};

use crate::support::Database;

const HOUR: Duration = Duration::from_secs(3600);
const DAY: Duration = Duration::from_secs(86_400);

/// One of each kind, with every option that it has.
fn limits() -> Limits {
    let define = |limits: Limits, name, limit: Result<Limit, pg_limiter::InvalidLimit>| {
        limits.define(name, limit.expect("a limit")).expect("a name")
    };
    let limits = Limits::new();
    let limits = define(limits, "plain", Limit::token_bucket(10, HOUR).build());
    let limits = define(limits, "bucket", Limit::token_bucket(10, HOUR).capacity(20).max_reserved(7).shards(2).build());
    let limits = define(limits, "fixed", Limit::fixed_window(5, 7 * DAY).start(3 * HOUR).capacity(9).build());
    let limits = define(limits, "sliding", Limit::sliding_window(0.5, 30 * DAY).resolution(4).build());
    let limits = define(limits, "slots", Limit::concurrency(3).lease(2 * HOUR).build());
    let limits = define(limits, "gate", Ok(Limit::gate()));
    let month = pg_limiter::Calendar::months(1);
    let calendar = Limit::calendar(1_000, month).zone("Europe/Berlin").anchor("2026-01-31 09:30");
    define(limits, "calendar", calendar.build())
}

async fn text(pool: &PgPool, sql: &str) -> String {
    let found: Result<Option<String>, _> = sqlx::query_scalar(AssertSqlSafe(sql.to_owned())).fetch_one(pool).await;
    found.unwrap_or_else(|error| panic!("{sql}: {error}")).unwrap_or_else(|| "NULL".to_owned())
}

/// The SQLSTATE and the message.
async fn refused(pool: &PgPool, sql: &str) -> (String, String) {
    let error = sqlx::query(AssertSqlSafe(sql.to_owned())).execute(pool).await.expect_err(sql);
    let error = error.as_database_error().unwrap_or_else(|| panic!("{sql}: {error}"));
    (error.code().unwrap_or_default().into_owned(), error.message().to_owned())
}

#[tokio::test]
async fn what_a_program_stores_is_what_it_reads() {
    let database = Database::migrated().await;
    assert_eq!(Limits::stored(&database.pool).await.expect("none"), Limits::new());
    let mut tx = database.pool.begin().await.expect("begin");
    let names = limits().store(&mut tx).await.expect("stored");
    assert_eq!(names, ["bucket", "calendar", "fixed", "gate", "plain", "sliding", "slots"]);
    // In the transaction, and not outside it.
    assert_eq!(Limits::stored(&mut *tx).await.expect("limits"), limits());
    assert_eq!(Limits::stored(&database.pool).await.expect("none"), Limits::new());
    tx.commit().await.expect("commit");
    assert_eq!(Limits::stored(&database.pool).await.expect("limits"), limits());

    // The same again changes nothing, whatever the session's style of intervals.
    for style in ["postgres", "iso_8601", "sql_standard", "postgres_verbose"] {
        let mut conn = PgConnection::connect(&database.url).await.expect("connect");
        sqlx::query(AssertSqlSafe(format!("SET intervalstyle = {style}"))).execute(&mut conn).await.expect("SET");
        assert_eq!(limits().store(&mut conn).await.expect("stored"), Vec::<String>::new(), "{style}");
        assert_eq!(Limits::stored(&mut conn).await.expect("limits"), limits(), "{style}");
    }
    let changed = Limits::new().define("plain", Limit::token_bucket(11, HOUR)).expect("a limit");
    let mut conn = PgConnection::connect(&database.url).await.expect("connect");
    assert_eq!(changed.store(&mut conn).await.expect("stored"), ["plain"]);
    assert_eq!(text(&database.pool, "SELECT count(*)::text FROM rate_limit.definitions").await, "8");
}

/// The plain functions answer as the functions with the rule in the call do.
#[tokio::test]
async fn a_stored_limit_decides_as_its_rule_in_the_call() {
    let database = Database::migrated().await;
    let pool = &database.pool;
    let rules = [
        ("bucket", "kind => 'token_bucket', rate => 10, period => '1 hour', capacity => 20, max_reserved => 7"),
        ("fixed", "kind => 'fixed_window', rate => 5, period => '7 days', start => '3 hours', capacity => 9"),
        ("sliding", "kind => 'sliding_window', rate => 8, period => '30 days', resolution => 4"),
        ("sharded", "kind => 'token_bucket', rate => 10, period => '1 hour', shards => 2"),
    ];
    for (name, rule) in rules {
        database.execute(&format!("SELECT rate_limit.define('{name}', {rule})")).await;
        for (nth, count) in [3.0, 0.0, 4.0, 2.0, 8.0].into_iter().enumerate() {
            for (op, reserve) in [("check", false), ("limit", false), ("limit", name == "bucket")] {
                let answer = "ok || ' ' || (retry_after IS NULL) || ' ' || round(value::numeric, 1)";
                let options = format!("count => {count}, reserve => {reserve}");
                let stored = format!("SELECT {answer} FROM rate_limit.{op}('{name}', 'stored', {options})");
                let given = format!("SELECT {answer} FROM rate_limit.{op}_with('{name}', 'given', {rule}, {options})");
                assert_eq!(text(pool, &stored).await, text(pool, &given).await, "{name} {nth} {op}");
            }
        }
        let all = |key: &str, of: &str, rule: &str| {
            format!(
                "SELECT ok || ' ' || denied_by::text || (limits -> 0 ->> 'denied') FROM rate_limit.limit_all{of}(\
                 ('[{{\"name\": \"{name}\", \"key\": \"{key}\", \"count\": 1{rule}}}]')::jsonb)"
            )
        };
        let fields = rule.replace(" => ", "\": ").replace(", ", ", \"").replace('\'', "\"");
        let given = all("given", "_with", &format!(", \"{fields}"));
        assert_eq!(text(pool, &all("stored", "", "")).await, text(pool, &given).await, "{name}");
    }
    // A calendar, slots and a gate.
    database
        .execute(
            "SELECT rate_limit.define('calendar', 'calendar_window', 3, every => '1 month', zone => 'Europe/Berlin'), \
               rate_limit.define('slots', 'concurrency', capacity => 1, lease => '1 hour'), rate_limit.define('gate', 'gate'), \
               rate_limit.block('gate', 'blocked', '1 hour')",
        )
        .await;
    let ends = "EXTRACT(epoch FROM date_trunc('month', now() AT TIME ZONE 'Europe/Berlin') + interval '1 month' - (now() AT TIME ZONE 'Europe/Berlin'))";
    let last = format!(
        "SELECT (abs(EXTRACT(epoch FROM retry_after) - {ends}) < 7200)::text FROM rate_limit.check('calendar', 'k', 3)"
    );
    assert_eq!(text(pool, "SELECT ok || ' ' || value FROM rate_limit.limit('calendar', 'k')").await, "true 2");
    assert_eq!(text(pool, &last).await, "true");
    let acquire = "SELECT ok || ' ' || (lease_id IS NOT NULL) FROM rate_limit.acquire('slots', 'k')";
    assert_eq!((text(pool, acquire).await, text(pool, acquire).await), ("true true".into(), "false false".into()));
    assert_eq!(text(pool, "SELECT value::text FROM rate_limit.check('slots', 'k', 0)").await, "0");
    assert_eq!(text(pool, "SELECT ok::text FROM rate_limit.limit('gate', 'free')").await, "true");
    assert_eq!(text(pool, "SELECT ok::text FROM rate_limit.limit('gate', 'blocked')").await, "false");
    assert_eq!(refused(pool, "SELECT rate_limit.enforce('gate', 'blocked')").await.0, "RL429");
    let all = "SELECT ok || ' ' || denied_by::text FROM rate_limit.limit_all('[{\"name\": \"calendar\", \"key\": \"k\"}, \
               {\"name\": \"gate\", \"key\": \"free\"}, {\"name\": \"slots\", \"key\": \"other\"}]')";
    assert_eq!(text(pool, all).await, "true {}");
    let charged =
        "SELECT rate_limit.charge_all('[{\"name\": \"calendar\", \"key\": \"k\", \"count\": 3}]') -> 0 ->> 'value'";
    assert_eq!(text(pool, charged).await, "-2");
    assert_eq!(text(pool, &charged.replace("charge", "credit")).await, "1");
}

#[tokio::test]
async fn a_change_applies_from_the_next_call_on_and_is_kept() {
    let database = Database::migrated().await;
    let pool = &database.pool;
    let define = |capacity: u32| {
        format!("SELECT rate_limit.define('a', 'token_bucket', 1, '1 day', capacity => {capacity})::text")
    };
    let take = "SELECT ok::text FROM rate_limit.limit('a', 'k', 2)";
    assert_eq!(text(pool, &define(2)).await, "true");
    assert_eq!(text(pool, &define(2)).await, "false", "nothing changed");
    assert_eq!((text(pool, take).await, text(pool, take).await), ("true".into(), "false".into()));
    assert_eq!(text(pool, &define(5)).await, "true");
    assert_eq!(text(pool, "SELECT ok::text FROM rate_limit.limit('a', 'other', 5)").await, "true");
    assert_eq!(text(pool, "SELECT rate_limit.undefine('a')::text").await, "true");
    assert_eq!(text(pool, "SELECT rate_limit.undefine('a')::text").await, "false");
    assert_eq!(refused(pool, take).await.0, "42704");
    assert_eq!(text(pool, "SELECT count(*)::text FROM rate_limit.limits").await, "0");
    // To undo a change is to define the former rule again; the balance is still there.
    assert_eq!(text(pool, &define(2)).await, "true");
    assert_eq!(text(pool, take).await, "false");
    let history = "SELECT string_agg(version || ' ' || coalesce(capacity::text, '-') || ' ' || (defined_by = current_user), ', ' \
                   ORDER BY version) FROM rate_limit.definitions";
    assert_eq!(text(pool, history).await, "1 2 true, 2 5 true, 3 - true, 4 2 true");
}

#[tokio::test]
async fn invalid_definitions_and_calls_are_errors() {
    let database = Database::migrated().await;
    let pool = &database.pool;
    database.execute("SELECT rate_limit.define('a', 'token_bucket', 1, '1 day'), rate_limit.define('s', 'concurrency', capacity => 1)").await;
    for (call, code, part) in [
        ("define('x', 'gate', rate => 3)", "22023", "rate does not apply to a gate"),
        ("define('x', 'token_bucket', 1)", "22023", "\"period\" is missing"),
        ("define('x', 'token_bucket', 'NaN', '1 day')", "22023", "infinite or NaN"),
        ("define('x', 'token_bucket', 1, '1 day', capacity => '-Infinity')", "22023", "infinite or NaN"),
        ("limit_with('x', 'k', 'calendar_window', 10, '36526 days')", "22023", "36525 days"),
        ("define('x', 'token_bucket', 1e20, '1 day')", "22023", "the rate 1e+20"),
        ("define('x', 'token_bucket', 1, '1 month')", "22023", "months"),
        ("define('x', 'token_bucket', 1, '1 day', zone => 'UTC')", "22023", "zone does not apply"),
        ("define('x', 'calendar_window', 1, every => '1 month', zone => 'CEST')", "22023", "\"CEST\""),
        ("define('x', 'concurrency', capacity => 1.5)", "22023", "1.5"),
        ("define('x', 'wrong', 1, '1 day')", "22023", "unknown kind \"wrong\""),
        ("define('', 'token_bucket', 1, '1 day')", "22023", "name is empty"),
        ("define(NULL, 'token_bucket', 1, '1 day')", "22023", "\"name\" is missing"),
        ("limit('b', 'k')", "42704", "the limit \"b\" is not defined"),
        ("check(NULL, 'k')", "22023", "name is NULL"),
        ("enforce('a', NULL)", "22023", "key is NULL"),
        ("limit('a', repeat('k', 1025))", "22023", "1025 bytes"),
        ("limit('a', 'k', 2)", "22023", "count_exceeds_capacity"),
        ("limit('a', 'k', 'NaN')", "22023", "invalid_count"),
        ("limit('s', 'k')", "22023", "has slots"),
        ("acquire('a', 'k')", "22023", "no slots"),
        ("limit_all('[{\"name\": \"b\", \"key\": \"k\"}]')", "42704", "element 1: the limit \"b\" is not defined"),
        (
            "limit_all('[{\"name\": \"a\", \"key\": \"k\", \"rate\": 9}]')",
            "22023",
            "\"rate\" is a part of the stored limit",
        ),
        ("check_all('[{\"key\": \"k\"}]')", "22023", "\"name\" is missing"),
        ("charge_all('{}')", "22023", "not an array"),
        ("credit_all('[3]')", "22023", "not object"),
        ("limit_all('[{\"name\": \"a\", \"key\": \"k\", \"foo\": 1}]')", "22023", "unknown field"),
    ] {
        let (found, message) = refused(pool, &format!("SELECT rate_limit.{call}")).await;
        assert!(found == code && message.contains(part), "{call}: {found} {message}");
    }
    assert_eq!(text(pool, "SELECT string_agg(name, ',') FROM rate_limit.limits").await, "a,s");
    assert_eq!(database.rows().await, 0);
}

/// EXECUTE on the plain functions gives no power over the rule.
#[tokio::test]
async fn a_role_that_calls_stored_limits_cannot_choose_a_rule() {
    let database = Database::migrated().await;
    database.execute("SELECT rate_limit.define('a', 'token_bucket', 1, '1 day')").await;
    let role = format!("stored_{}_{}", std::process::id(), database.name.len());
    let grants = crate::support::guide::grants(Use::Trigger).replace("app_role", &role);
    database.execute(&format!("DROP ROLE IF EXISTS {role}; CREATE ROLE {role}; {grants}")).await;
    let mut conn = database.pool.acquire().await.expect("a connection");
    let mut run = async |sql: &str| {
        let sql = format!("SET ROLE {role}; {sql}");
        let result = sqlx::raw_sql(AssertSqlSafe(sql)).execute(&mut *conn).await;
        sqlx::raw_sql("RESET ROLE").execute(&mut *conn).await.expect("RESET ROLE");
        result.err().and_then(|error| error.as_database_error()?.code().map(|code| code.into_owned()))
    };
    assert_eq!(run("SELECT rate_limit.limit('a', 'k')").await, None);
    assert_eq!(run("SELECT rate_limit.enforce('a', 'k')").await.as_deref(), Some("RL429"));
    for other in [
        "SELECT rate_limit.limit_with('a', 'k', 'token_bucket', 1e9, '1 second')",
        "SELECT rate_limit.define('a', 'token_bucket', 1e9, '1 second')",
        "SELECT rate_limit.undefine('a')",
        "SELECT rate_limit.reset('a', 'k')",
        "SELECT rate_limit._call('limit', 'k', NULL, 1, false, NULL)",
        "SELECT * FROM rate_limit.limits",
        "INSERT INTO rate_limit.definitions (name, version, defined_at, defined_by) VALUES ('a', 9, now(), 'x')",
    ] {
        assert_eq!(run(other).await.as_deref(), Some("42501"), "{other}");
    }
    // The author is the role that called, not the owner.
    assert_eq!(run(&format!("RESET ROLE; GRANT EXECUTE ON FUNCTION rate_limit.define TO {role}")).await, None);
    assert_eq!(run("SELECT rate_limit.define('b', 'token_bucket', 1, '1 day')").await, None);
    let by = text(&database.pool, "SELECT defined_by FROM rate_limit.limits WHERE name = 'b'").await;
    assert_eq!(by, role);
    drop(conn);
    database.execute(&format!("DROP OWNED BY {role}; DROP ROLE {role}")).await;
}

/// If two transactions define the same limit, the later one has to be repeated.
#[tokio::test]
async fn definitions_at_the_same_time_keep_their_order() {
    let database = Database::migrated().await;
    let limit = |rate: u32| Limits::new().define("a", Limit::token_bucket(rate, HOUR)).expect("a limit");
    let mut first = database.pool.begin().await.expect("begin");
    let mut second = database.pool.begin().await.expect("begin");
    assert_eq!(limit(1).store(&mut first).await.expect("stored"), ["a"]);
    let storing = tokio::spawn(async move {
        let stored = limit(2).store(&mut second).await;
        (stored, second)
    });
    let waits =
        "SELECT count(*)::text FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND datname = current_database()";
    while text(&database.pool, waits).await != "1" {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    first.commit().await.expect("commit");
    let (stored, second) = storing.await.expect("a task");
    assert!(matches!(stored, Err(Error::Conflict { .. })), "{stored:?}");
    second.rollback().await.expect("rollback");
    let mut conn = database.pool.acquire().await.expect("a connection");
    assert_eq!(limit(2).store(&mut conn).await.expect("stored"), ["a"]);
    assert_eq!(Limits::stored(&database.pool).await.expect("limits"), limit(2));
}

#[tokio::test]
async fn a_limiter_follows_the_stored_limits() {
    let database = Database::migrated().await;
    let limit = |rate: u32| Limits::new().define("a", Limit::token_bucket(rate, HOUR)).expect("a limit");
    let mut conn = database.pool.acquire().await.expect("a connection");
    let _ = limit(1).store(&mut conn).await.expect("stored");
    let in_code = Limits::new().define("other", Limit::token_bucket(1, HOUR)).expect("a limit");
    let limiter = database.limiter(in_code.clone());
    let watch = limiter.follow_stored_limits().expect("a runtime");
    watch.reload().await.expect("the stored limits");
    assert_eq!(limiter.limits(), limit(1).define("other", Limit::token_bucket(1, HOUR)).expect("a limit"));

    let _ = limit(5).store(&mut conn).await.expect("stored");
    watch.reload().await.expect("the stored limits");
    assert!(limiter.limit(("a", "k", 5)).await.expect("a decision").is_allowed());
    assert_eq!((watch.changes(), watch.last_error()), (2, None));

    // Limits with which calls would fail, or a balance be misread, change nothing.
    database.execute("SELECT rate_limit.undefine('a')").await;
    let error = watch.reload().await.expect_err("missing");
    assert!(error.to_string().starts_with("stored limits: limit \"a\" is missing"), "{error}");
    database.execute("SELECT rate_limit.define('a', 'fixed_window', 9, '1 hour')").await;
    let error = watch.reload().await.expect_err("another kind");
    assert!(error.to_string().contains("cannot become a fixed_window"), "{error}");
    assert_eq!(limiter.limits().get("a").map(|limit| limit.rate()), Some(5.0));
    let _ = limit(6).store(&mut conn).await.expect("stored");
    watch.reload().await.expect("the stored limits");
    assert_eq!(limiter.limits().get("a").map(|limit| limit.rate()), Some(6.0));
}

/// A program that follows learns of a change at once, and not of a definition that changes nothing.
#[tokio::test(flavor = "multi_thread")]
async fn a_changed_definition_notifies_those_that_follow() {
    let database = Database::migrated().await;
    let limiter = database.limiter(Limits::new());
    let watch = limiter.follow_stored_limits().expect("a runtime");
    let listening = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND query = 'LISTEN \"rate_limit_limits\"'";
    let sessions = async || sqlx::query_scalar::<_, i64>(listening).fetch_one(&database.pool).await.expect("sessions");
    while sessions().await == 0 {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    let mut listener = PgListener::connect_with(&database.pool).await.expect("a listener");
    listener.listen("rate_limit_limits").await.expect("it listens");
    for rate in [3, 3, 4] {
        database.execute(&format!("SELECT rate_limit.define('a', 'token_bucket', {rate}, '1 hour')")).await;
    }
    database.execute("NOTIFY rate_limit_limits, 'last'").await;
    let mut payloads = Vec::new();
    while payloads.last().is_none_or(|last| last != "last") {
        payloads.push(listener.recv().await.expect("a notification").payload().to_owned());
    }
    assert_eq!(payloads, ["a", "a", "last"]);
    while limiter.limits().get("a").map(|limit| limit.rate()) != Some(4.0) {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    drop((watch, listener));
    while sessions().await > 0 {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

/// All calls read the same rule of a calendar window, whatever day its weeks begin on.
#[tokio::test]
async fn the_anchor_of_a_calendar_window_is_that_of_its_definition() {
    let database = Database::migrated().await;
    let pool = &database.pool;
    for (unit, anchor, is_default) in [
        ("week", "1970-01-01", false),
        ("week", "1970-01-05", true),
        ("week", "1970-01-12", false),
        ("day", "1970-01-01", true),
        ("day", "1970-01-05", false),
        ("month", "1970-01-01", true),
        ("month", "1970-01-05", false),
        ("hour", "1970-01-01", true),
        ("hour", "1970-01-01 00:30", false),
    ] {
        let name = format!("{unit} {anchor}");
        let options = format!("'calendar_window', 10, every => '2 {unit}', anchor => '{anchor}'");
        database.execute(&format!("SELECT rate_limit.define('{name}', {options})")).await;
        let shown = text(pool, &format!("SELECT anchor FROM rate_limit.limits WHERE name = '{name}'")).await;
        assert_eq!(shown == "NULL", is_default, "{name}: {shown}");
        let rule = format!(
            "(SELECT kind FROM rate_limit._elements(rate_limit._defined('[{{\"name\": \"{name}\", \"key\": \"k\"}}]')))"
        );
        let stored = format!("(SELECT kind FROM rate_limit.definitions WHERE name = '{name}')");
        assert_eq!(text(pool, &rule).await, text(pool, &stored).await, "{name}");
    }
    // So a program that reads them changes none of them.
    let mut conn = PgConnection::connect(&database.url).await.expect("connect");
    let limits = Limits::stored(&mut conn).await.expect("limits");
    assert_eq!(limits.store(&mut conn).await.expect("stored"), Vec::<String>::new());
}

/// A renewal lasts as long as the lease that was taken.
#[tokio::test]
async fn a_renewal_without_a_length_has_the_stored_one() {
    let database = Database::migrated().await;
    let pool = &database.pool;
    database.execute("SELECT rate_limit.define('long', 'concurrency', capacity => 1, lease => '10 minutes')").await;
    let (long, other) = (9, 7);
    database
        .execute(&format!(
            "SELECT rate_limit.limit_all('[{{\"name\": \"long\", \"key\": \"k\", \"lease_id\": {long}}}]')"
        ))
        .await;
    let element =
        format!(r#"{{"name": "other", "key": "k", "kind": "concurrency", "capacity": 1, "lease_id": {other}}}"#);
    database.execute(&format!("SELECT rate_limit.limit_all_with('[{element}]')")).await;
    for (name, lease, length, at_least, at_most) in [
        ("long", long, "", 590, 600),
        ("long", long, ", lease => '2 minutes'", 110, 120),
        ("long", long, ", NULL", 590, 600),
        ("other", other, "", 20, 30),
    ] {
        assert_eq!(text(pool, &format!("SELECT rate_limit.renew('{name}', 'k', {lease}{length})::text")).await, "true");
        let rest = "(detail[2] / 1e6 - extract(epoch FROM clock_timestamp()))::integer";
        let rest =
            text(pool, &format!("SELECT ({rest})::text FROM rate_limit.rate_limits WHERE name = '{name}'")).await;
        let rest: i32 = rest.parse().expect("seconds");
        assert!((at_least..=at_most).contains(&rest), "{name}{length}: {rest} s");
    }
}

/// Numbers are stored and read as they were given, however the session shows them.
#[tokio::test]
async fn the_sessions_style_of_numbers_changes_no_rule() {
    let database = Database::migrated().await;
    let pool = &database.pool;
    let exact = "0.12345678901234568";
    for digits in [1, 0, -11, 3] {
        let sql = format!(
            "SET extra_float_digits = {digits}; SELECT rate_limit.define('a', 'token_bucket', {exact}, '1 day', capacity => 1234567)"
        );
        let mut conn = PgConnection::connect(&database.url).await.expect("connect");
        sqlx::raw_sql(AssertSqlSafe(sql)).execute(&mut conn).await.expect("a definition");
        let is_exact = format!(
            "SELECT (rate = {exact} AND capacity = 1234567)::text \
             FROM rate_limit._elements(rate_limit._defined('[{{\"name\": \"a\", \"key\": \"k\"}}]'))"
        );
        let read: String = sqlx::query_scalar(AssertSqlSafe(is_exact)).fetch_one(&mut conn).await.expect("a rule");
        assert_eq!(read, "true", "{digits}");
        let limits = Limits::stored(&mut conn).await.expect("limits");
        let limit = limits.get("a").expect("a limit");
        assert_eq!((limit.rate().to_string(), limit.capacity()), (exact.to_owned(), 1_234_567.0), "{digits}");
    }
    assert_eq!(text(pool, "SELECT count(*)::text FROM rate_limit.definitions").await, "1");
    // A field that is null is missing.
    let answer = "SELECT ok::text FROM rate_limit.limit_all('[{\"name\": \"a\", \"key\": \"k\", \"rate\": null, \"count\": null}]')";
    assert_eq!(text(pool, answer).await, "true");
}
