//! The tool `pg-limiter` as users see it: exit codes, output, files.

use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};

use pg_limiter::sqlx::{self, AssertSqlSafe};

use crate::binary::{files, run, tool as tool_path};
use crate::support::{Database, signal};

const LIMITS: &str = r#"
    [limits.send_message]
    kind = "token_bucket"
    rate = 10
    period = "1m"
    [limits.per_org]
    kind = "token_bucket"
    rate = 4
    period = "1m"
    [limits.search]
    kind = "sliding_window"
    rate = 2
    period = "10s"
"#;

#[tokio::test(flavor = "multi_thread")]
async fn exit_codes_report_the_decision() {
    let database = Database::migrated().await;
    let tool = |args: &str| run(Some(&database.url), &args.split(' ').collect::<Vec<_>>(), "");
    let limit = "--rate 1 --period 1d --capacity 2";
    tool(&format!("limit a u1 {limit}")).says(0, "allowed, 1 left");
    tool(&format!("limit a u1 {limit}")).says(0, "allowed, 0 left");
    let denied = tool(&format!("limit a u1 {limit}"));
    assert_eq!(denied.code, Some(1));
    // The text has two units; JSON has the exact time.
    assert_eq!(denied.stdout, "denied, retry after 23h 59m, 0 left\n");
    let exact = tool(&format!("check a u1 {limit} --json")).stdout;
    assert!(exact.starts_with(r#"{"ok": false, "retry_after_ms": 863"#), "{exact}");
    assert_eq!(tool(&format!("check a u1 {limit}")).code, Some(1));
    let peeked = tool(&format!("peek a u1 {limit}"));
    assert!(peeked.code == Some(0) && peeked.stdout.starts_with("0 left, full in 1d 23h"), "{}", peeked.stdout);
    let window = tool("peek f u1 --kind fixed_window --rate 2 --period 365d").stdout;
    assert!(window.starts_with("2 left, full, window ends in "), "{window}");
    tool(&format!("limit a u2 {limit} --count 3")).refuses(2, &["count 3", "\"a\"", "at most 2"]);
    let reserved = tool(&format!("limit a u1 {limit} --reserve"));
    assert_eq!(reserved.code, Some(0));
    assert_eq!(reserved.stdout, "reserved, wait 23h 59m, -1 left\n");
    tool("reset a u1").says(0, "done, 1 row removed");
    tool(&format!("peek a u1 {limit} --json")).says(0, r#"{"value": 2, "full_in_ms": 0, "window_ends_in_ms": null}"#);
    tool(&format!("limit a {limit} --json")).says(0, r#"{"ok": true, "retry_after_ms": null, "value": 1}"#);
    tool("reset a --all-keys").says(0, "done, 1 row removed");
}

#[tokio::test(flavor = "multi_thread")]
async fn waits_are_printed_in_two_units_from_a_minute_on() {
    let database = Database::migrated().await;
    let tool = |args: &str| run(Some(&database.url), &args.split(' ').collect::<Vec<_>>(), "");
    for (key, period, wait) in
        [("days", "11d", "10d 23h"), ("hours", "2h", "1h 59m"), ("minutes", "2m", "1m 59"), ("seconds", "59s", "58.")]
    {
        let limit = format!("a {key} --rate 1 --period {period}");
        assert_eq!(tool(&format!("limit {limit}")).code, Some(0));
        let denied = tool(&format!("limit {limit}")).stdout;
        assert!(denied.starts_with(&format!("denied, retry after {wait}")), "{denied}");
    }
    let simulated = tool("simulate --rate 1 --period 11d --traffic constant --calls 1/1h --for 2h");
    assert!(simulated.stdout.contains(" 10d 23h "), "{}", simulated.stdout);
}

#[tokio::test(flavor = "multi_thread")]
async fn reset_reports_whether_a_row_existed() {
    let database = Database::migrated().await;
    let tool = |args: &str| run(Some(&database.url), &args.split(' ').collect::<Vec<_>>(), "");
    let limit = "--rate 8 --period 1d --shards 4";
    assert_eq!(tool(&format!("limit a u1 {limit}")).code, Some(0));
    let rows = database.rows().await;
    tool("reset a u1").says(0, &format!("done, {rows} rows removed"));
    let none = "nothing to reset: the limit \"a\" has no row for this key, so its bucket is full";
    tool("reset a u1").says(0, none);
    tool("reset a u1 --must-exist").says(1, none);
    tool("reset nosuch --all-keys --must-exist").says(1, "nothing to reset: the limit \"nosuch\" has no row");
    tool("reset nosuch --all-keys").says(0, "nothing to reset: the limit \"nosuch\" has no row");
    tool("reset a u1 --json").says(0, r#"{"ok": true, "rows": 0}"#);
    tool("reset a u1 --json --must-exist").says(1, r#"{"ok": false, "rows": 0}"#);
    assert_eq!(tool("limit a u1 --rate 8 --period 1d").code, Some(0));
    tool("reset a u1 --must-exist").says(0, "done, 1 row removed");
    // `reset` hashes the key as `limit` does.
    let (_dir, path) = files(&[("secret", "sixteen bytes at least")]);
    let secret = format!("--key-secret-file {}", path("secret"));
    assert_eq!(tool(&format!("limit a u1 --rate 8 --period 1d {secret}")).code, Some(0));
    tool("reset a u1").says(0, none);
    tool(&format!("reset a u1 {secret}")).says(0, "done, 1 row removed");
    assert_eq!(database.rows().await, 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn prune_reports_the_number_of_deleted_rows() {
    let database = Database::migrated().await;
    let tool = |args: &str| run(Some(&database.url), &args.split(' ').collect::<Vec<_>>(), "");
    let idle = "INSERT INTO rate_limit.rate_limits (name, key, value, ts, idle_at) VALUES ('a', 'k', 1, 0, 0)";
    assert_eq!(tool("limit a in-use --rate 1 --period 1d").code, Some(0));
    database.execute(idle).await;
    tool("prune").says(0, "done, 1 row removed");
    tool("prune").says(0, "done, 0 rows removed");
    database.execute(idle).await;
    tool("prune --json").says(0, r#"{"ok": true, "rows": 1}"#);
    assert_eq!(database.rows().await, 1);
    let none = Database::empty().await;
    run(Some(&none.url), &["prune"], "").refuses(3, &["\"rate_limit\"", "pg-limiter migrate"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn failures_have_their_own_exit_codes() {
    let database = Database::empty().await;
    let limit = ["limit", "a", "--rate", "1", "--period", "1m"];
    run(Some(&database.url), &limit, "").refuses(3, &["\"rate_limit\"", "pg-limiter migrate"]);
    run(Some("postgres://nobody@127.0.0.1:1/none"), &limit, "").refuses(3, &["cannot connect"]);
    run(Some("mysql://nobody@127.0.0.1/none"), &limit, "").refuses(2, &["postgres://"]);
    // If a script's variable is empty, a private server, where every bucket is full, must not answer it.
    for empty in ["", " "] {
        run(None, &[&limit[..], &["--database-url", empty]].concat(), "").refuses(2, &["--database-url is empty"]);
    }
    let url = Some(database.url.as_str());
    run(url, &["limit", "a"], "").refuses(2, &["--limits", "--rate"]);
    run(url, &["limit", "a", "--limits", "no/such.toml"], "").refuses(2, &["no/such.toml"]);
    run(url, &["limit", "a", "--rate", "1", "--period", "soon"], "").refuses(2, &["period", "soon"]);
    assert_eq!(run(url, &["limit"], "").code, Some(2));
    assert_eq!(run(url, &["limit", "--help"], "").code, Some(0));
    let no_toml = "[limits.a]\nkind = \"token_bucket\"\nrate = 1\nperiod = \"1m\"\nburst = 3\n";
    let no_json = r#"{"limits": {"a": {"kind": "token_bucket", "rate": 1, "period": "1m", "burst": 3}}}"#;
    let (_dir, path) = files(&[("x.toml", no_toml), ("x.json", no_json)]);
    for name in ["x.toml", "x.json"] {
        run(url, &["limit", "a", "--limits", &path(name)], "")
            .refuses(2, &[name, "limit \"a\"", "unknown field `burst`"]);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_failed_connection_names_the_reason_of_the_server() {
    let database = Database::empty().await;
    let url = database.url.replacen("://", "://nouser-", 1).replacen("nouser-postgres", "nouser", 1);
    let refused = run(Some(&url), &["doctor"], "");
    assert_eq!(refused.code, Some(3));
    assert!(refused.stderr.contains("cannot connect") && !refused.stderr.contains("at line"), "{}", refused.stderr);
    let url = database.url.replace("/postgres?", "/none?").replace(name(&database), "none");
    run(Some(&url), &["limits", "show"], "").refuses(3, &["database \"none\" does not exist (SQLSTATE 3D000)"]);
}

#[test]
fn invalid_variables_are_refused() {
    use std::os::unix::ffi::OsStrExt;
    let refused = |args: &[&str], variable: &str, value: &[u8]| {
        let mut tool = Command::new(tool_path());
        tool.args(args).env("DATABASE_URL", "postgres://u@127.0.0.1:1/none");
        let output = tool.env(variable, std::ffi::OsStr::from_bytes(value)).output().expect("the tool");
        let stderr = String::from_utf8(output.stderr).expect("UTF-8");
        assert_eq!(output.status.code(), Some(2), "{stderr}");
        assert!(stderr.contains(variable), "{stderr}");
    };
    for mode in [&b"verify_full"[..], b"\xff"] {
        refused(&["limits", "show"], "PGSSLMODE", mode);
    }
    refused(&["ui"], "PG_LIMITER_UI_TOKEN", b"\xff0123456789abcdef0123456789abcdef");
}

#[tokio::test(flavor = "multi_thread")]
async fn printed_sql_is_sufficient() {
    let database = Database::empty().await;
    for schema in ["rate_limit", "public", "Of \"limits\""] {
        // Printing needs no database: none could be started in this folder.
        let print = |what| {
            let output = Command::new(tool_path())
                .args(["migrate", what, "--schema", schema])
                .env_remove("DATABASE_URL")
                .env("PG_BIN_DIR", "/nowhere")
                .output()
                .expect("print");
            assert_eq!((output.status.code(), output.stderr.as_slice()), (Some(0), [].as_slice()));
            String::from_utf8(output.stdout).expect("UTF-8")
        };
        assert_eq!(print("--list"), "0001 rate_limits\n0001 queue\n");
        database.execute(&print("--print")).await;
        let limit = ["limit", "a", "--rate", "2", "--period", "1d", "--schema", schema];
        run(Some(&database.url), &limit, "").says(0, "allowed, 1 left");
        let checked = run(Some(&database.url), &["migrate", "--check", "--schema", schema], "");
        checked.says(0, &format!("schema \"{schema}\" matches this release"));
        let migrated = run(Some(&database.url), &["migrate", "--schema", schema], "");
        migrated.says(0, &format!("schema \"{schema}\" is at version 1: nothing to do"));
        database.execute(&print("--print-uninstall")).await;
        run(Some(&database.url), &limit, "").refuses(3, &["pg-limiter migrate"]);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn parts_of_the_sql_can_be_printed_alone() {
    let database = Database::empty().await;
    let print = |more: &[&str]| run(None, &[&["migrate", "--print"], more].concat(), "");
    assert_eq!(print(&["--from", "1"]).stdout, print(&[]).stdout);
    let functions = print(&["--functions"]).stdout;
    assert!(
        !functions.contains("CREATE TABLE rate_limit.rate_limits (")
            && functions.contains("FUNCTION rate_limit._decide_one(")
    );
    print(&["--from", "2"]).refuses(2, &["--from 2", "from 1 to 1"]);
    assert_eq!(run(None, &["migrate", "--from", "1"], "").code, Some(2));
    assert_eq!(run(None, &["migrate", "--print", "--from", "1", "--functions"], "").code, Some(2));
    for other in ["--check", "--list", "--print-uninstall", "--distributed"] {
        for (option, args) in [("--from", &["--from", "1"][..]), ("--functions", &["--functions"])] {
            let refused = format!("{option} applies only to --print");
            run(None, &[&["migrate", other], args].concat(), "").refuses(2, &[&refused]);
        }
    }
    for args in [["--exact"].as_slice(), &["--key-secret-file", "no/such"]] {
        assert_eq!(run(None, &[&["reset", "a", "--all-keys"], args].concat(), "").code, Some(2));
    }

    // The queue is added to the core.
    let core = print(&["--without-queue"]).stdout;
    assert!(core.contains("-- 0001_rate_limits\n") && !core.contains("-- 0001_queue\n"), "{}", &core[..100]);
    database.execute(&core).await;
    run(Some(&database.url), &["queue", "ls", "mails"], "").refuses(3, &["pg-limiter migrate"]);
    let of_tool = |args: &[&str]| run(Some(&database.url), args, "");
    of_tool(&["migrate", "--without-queue"]).says(0, "schema \"rate_limit\" is at version 1: nothing to do");
    of_tool(&["migrate", "--check", "--without-queue"]).says(0, "schema \"rate_limit\" matches this release");
    of_tool(&["migrate", "--check"]).says(1, "migration 1 (queue) is not applied");
    for (args, expected) in [
        (&["top", "--once"][..], "no jobs"),
        (&["doctor"], "the queue is not installed"),
        (&["migrate"], "schema \"rate_limit\" is at version 1: applied queue, updated"),
    ] {
        let output = of_tool(args);
        assert!(output.stdout.contains(expected), "{args:?}: {}", output.stdout);
    }
    run(Some(&database.url), &["queue", "ls", "mails"], "").refuses(2, &["mails"]);
}

const EVENTS: &str = r#"{"at": 1767225601000.5, "limit": "send_message", "key": "u1"}

{"at": 1767225600000, "op": "limit", "limit": "send_message", "key": "u1", "count": 10, "reserve": false}
{"at": 1767225601000.5, "op": "limit", "all": [{"limit": "per_org", "key": "o\"7", "count": 3}, {"limit": "send_message", "key": "u2"}]}
{"at": 1767225601001, "all": [{"limit": "per_org", "key": "o\"7", "count": 2}, {"limit": "send_message", "key": "u1"}]}
{"at": 1767225601002, "op": "check", "limit": "send_message", "key": "u1", "count": 11}
{"at": 1767225601002, "limit": "send_message", "key": "u1", "count": -1}
{"at": 1767225601002, "limit": "nope"}
{"at": 1767225601002, "limit": "search", "reserve": true}
{"at": 1767225601003, "op": "reset", "limit": "send_message", "key": "u1"}
{"at": 1767225601004, "limit": "send_message", "key": "u1", "count": 12, "reserve": true}
"#;
const DECISIONS: &str = r#"{"ok": false, "retry_after_ms": 4999.5, "value": 0.16675, "denied_by": ["send_message"]}
{"ok": true, "retry_after_ms": null, "value": 0}
{"ok": true, "retry_after_ms": null, "value": 1}
{"ok": false, "retry_after_ms": 14999.5, "value": 0.16683333333333333, "denied_by": ["per_org", "send_message"]}
{"error": "count_exceeds_capacity", "message": "the count 11 can never be served by the limit \"send_message\", which grants at most 10; lower the count, or raise the capacity"}
{"error": "invalid_count", "message": "the count -1 for the limit \"send_message\" is not valid; use 0, or a number from 1e-6 to 1e13"}
{"error": "unknown_limit", "message": "there is no limit \"nope\"; define it, or pass it inline with the call"}
{"error": "reserve_unsupported", "message": "the limit \"search\" is a sliding_window, which cannot reserve; use a token bucket or a fixed window"}
{"ok": true, "retry_after_ms": null, "value": 10}
{"ok": true, "retry_after_ms": 12000, "value": -2}"#;

async fn snapshot(database: &Database) -> String {
    let sql = "SELECT concat_ws(' ', (SELECT string_agg(r::text, ',' ORDER BY key) FROM rate_limit.rate_limits AS r), \
               (SELECT count(*) FROM pg_class), (SELECT count(*) FROM pg_proc), \
               (SELECT string_agg(xmin::text, ',') FROM rate_limit.rate_limits))";
    sqlx::query_scalar(AssertSqlSafe(sql)).fetch_one(&database.pool).await.expect("a snapshot")
}

#[tokio::test(flavor = "multi_thread")]
async fn replay_decides_on_the_recorded_clock_and_leaves_the_database_as_it_was() {
    let database = Database::migrated().await;
    let (_dir, path) = files(&[("limits.toml", LIMITS), ("events.jsonl", EVENTS)]);
    let url = Some(database.url.as_str());
    let limits = path("limits.toml");
    // The same buckets are empty in the database.
    for key in ["u1", "u2"] {
        run(url, &["limit", "send_message", key, "--limits", &limits, "--count", "10"], "").says(0, "allowed, 0 left");
    }
    let before = snapshot(&database).await;
    let json = ["replay", "--limits", &limits, "--events", &path("events.jsonl"), "--json"];
    run(url, &json, "").says(0, DECISIONS);
    let stdin = ["replay", "--limits", &limits, "--events", "-", "--json"];
    run(url, &stdin, EVENTS).says(0, DECISIONS);
    let table = run(url, &json[..5], "");
    assert_eq!(table.code, Some(0), "{}", table.stderr);
    assert_eq!(table.stderr, "");
    for line in [
        "5 requests: 3 admitted, 2 denied (40.0 %)",
        "3 keys: 2 ever denied (66.7 %)",
        "not counted above: 0 checks, 1 reset",
    ] {
        assert!(table.stdout.contains(line), "{}", table.stdout);
    }
    assert_eq!(snapshot(&database).await, before);

    // A database without the limiter's schema that is read-only by default.
    let database = Database::empty().await;
    database.execute(&format!("ALTER DATABASE {} SET default_transaction_read_only = on", name(&database))).await;
    run(Some(&database.url), &json, "").says(0, DECISIONS);
    // No database at all.
    let private = run(None, &json, "");
    private.says(0, DECISIONS);
    assert!(private.stderr.contains("private PostgreSQL"), "{}", private.stderr);
}

fn name(database: &Database) -> &str {
    database.url.rsplit('/').next().expect("a name").split('?').next().expect("a name")
}

#[test]
fn an_invalid_event_stops_the_replay() {
    let good = r#"{"at": 1767225600000, "limit": "send_message"}"#;
    for (bad, reason) in [
        ("hello", "expected value"),
        (r#"{"at": 1767225600000, "limit": "send_message", "kee": "u1"}"#, "unknown field `kee`"),
        (r#"{"at": "now", "limit": "send_message"}"#, "invalid type: string"),
        (r#"{"at": 1767225600000, "limit": "send_message", "count": "2"}"#, "invalid type: string \"2\""),
        (r#"{"at": 1767225600000}"#, "neither `limit` nor `all`"),
        (r#"{"at": 1767225600000, "limit": "a", "all": [{"limit": "b"}]}"#, "both `limit` and `all`"),
        (r#"{"limit": "send_message"}"#, "missing field `at`"),
    ] {
        let events = format!("{good}\n\n{bad}\n{good}\n");
        let (_dir, path) = files(&[("limits.toml", LIMITS), ("events.jsonl", &events)]);
        let args = ["replay", "--limits", &path("limits.toml"), "--events", &path("events.jsonl"), "--json"];
        run(None, &args, "").refuses(2, &["events.jsonl, line 3: ", reason]);
    }
    let (_dir, path) =
        files(&[("limits.toml", LIMITS), ("access.log", "::1 - - [17/May/2015:10:05:03 +0000] \"-\" 400 -\nno\n")]);
    let args = ["replay", "--limits", &path("limits.toml"), "--apply", "search", "--access-log", &path("access.log")];
    run(None, &args, "").refuses(2, &["access.log, line 2: ", "not a line of an access log"]);
}

const LOG: &str = r#"2001:db8::7 - - [17/May/2015:10:05:03 +0000] "GET /a?x=1 HTTP/1.1" 200 512 "-" "an \"odd\" agent"
10.0.0.1 - anna [17/May/2015:12:05:02 +0200] "GET /a HTTP/1.1" 200 - "-" "other"
2001:db8::7 - - [17/May/2015:10:05:01 +0000] "POST /b HTTP/1.1" 404 7
2001:db8::7 - - [17/May/2015:10:05:00 +0000] "GET /a?x=2 HTTP/1.1" 200 512 "-" "an \"odd\" agent"
"#;

#[tokio::test(flavor = "multi_thread")]
async fn an_access_log_is_replayed_by_any_field() {
    let database = Database::empty().await;
    let (_dir, path) = files(&[("limits.toml", LIMITS), ("access.log", LOG)]);
    let (limits, log) = (path("limits.toml"), path("access.log"));
    let replay = |key| {
        let args = ["replay", "--limits", &limits, "--apply", "search", "--access-log", &log, "--key", key, "--json"];
        let decided = run(Some(&database.url), &args, "");
        assert_eq!(decided.code, Some(0), "{}", decided.stderr);
        decided.stdout.lines().map(|line| line.starts_with(r#"{"ok": true"#)).collect::<Vec<_>>()
    };
    assert_eq!(replay("remote_addr"), [false, true, true, true]);
    assert_eq!(replay("path"), [false, true, true, true]);
    assert_eq!(replay("uri"), [true; 4]);
    assert_eq!(replay("method"), [false, true, true, true]);
    assert_eq!(replay("user"), [false, true, true, true]);
    assert_eq!(replay("user_agent"), [true; 4]);
    let args = ["replay", "--limits", &limits, "--apply", "none", "--access-log", &log];
    run(Some(&database.url), &args, "").refuses(2, &["limits.toml", "\"none\""]);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_table_lists_the_clients_that_would_be_limited() {
    let database = Database::empty().await;
    let (_dir, path) = files(&[(
        "limits.json",
        r#"{"limits": {"api": {"kind": "token_bucket", "rate": 10, "period": "1m", "capacity": 20}}}"#,
    )]);
    let log = concat!(env!("CARGO_MANIFEST_DIR"), "/../tests/data/access-sample.log");
    let args = ["replay", "--limits", &path("limits.json"), "--apply", "api", "--access-log", log];
    // The numbers were computed independently of this crate, with fractions.
    let expected = "\
api: token_bucket, 10 per 1m, capacity 20
REMOTE_ADDR  REQUESTS  ADMITTED  DENIED  % DENIED  LONGEST RUN   FIRST DENIED (UTC)
75.97.9.59        192        58     134      69.8           15  2015-05-18 08:05:10

200 requests: 66 admitted, 134 denied (67.0 %)
7 keys: 1 ever denied (14.3 %)
from 2015-05-18 08:05:00 to 2015-05-18 09:05:59 UTC: 1h 59s";
    run(Some(&database.url), &args, "").says(0, expected);
}

#[tokio::test(flavor = "multi_thread")]
async fn output_may_be_closed_early() {
    let database = Database::empty().await;
    let events = "{\"at\": 1767225600000, \"limit\": \"send_message\"}\n".repeat(5000);
    let (_dir, path) = files(&[("limits.toml", LIMITS), ("events.jsonl", &events)]);
    let (limits, events) = (path("limits.toml"), path("events.jsonl"));
    let simulate = ["simulate", "--limits", &limits, "--calls", "50/s", "--bin", "1s", "--for", "1000s", "--json"];
    let replay = ["replay", "--limits", &limits, "--events", &events, "--json"];
    for args in [&replay[..], &simulate, &["migrate", "--print"]] {
        ends_well_if_nobody_reads(&database.url, args);
    }
}

/// The reader closes the pipe early, as `head` does: the tool succeeds and prints no message.
pub fn ends_well_if_nobody_reads(url: &str, args: &[&str]) {
    let mut child = Command::new(tool_path())
        .args(args)
        .env("DATABASE_URL", url)
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("start the tool");
    drop(child.stdout.take());
    let output = child.wait_with_output().expect("its end");
    assert_eq!((output.status.code(), String::from_utf8_lossy(&output.stderr).as_ref()), (Some(0), ""));
}

/// The variable may be of another program, which uses another database.
#[test]
fn commands_without_a_database_need_no_valid_url() {
    for args in [&["completions", "bash"][..], &["man"]] {
        let made = run(Some("mysql://another-program@db/app"), args, "");
        assert!(made.code == Some(0) && made.stdout.contains("pg-limiter"), "{args:?}: {}", made.stderr);
    }
}

const DEMO_SCHEMAS: &str = "SELECT count(*) FROM pg_namespace WHERE nspname LIKE '%demo%'";

#[tokio::test(flavor = "multi_thread")]
async fn the_demo_shows_exact_numbers_and_cleans_up() {
    let database = Database::empty().await;
    let demo = run(Some(&database.url), &["demo"], "");
    assert_eq!(demo.code, Some(0), "{}{}", demo.stdout, demo.stderr);
    assert!(demo.stdout.contains("admitted 250, the limit allows 250: exact"), "{}", demo.stdout);
    assert!(!demo.stdout.contains('\u{1b}'), "colours are for terminals only");
    assert_eq!(sqlx::query_scalar::<_, i64>(DEMO_SCHEMAS).fetch_one(&database.pool).await.expect("a count"), 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_interrupted_demo_leaves_no_schema() {
    let database = Database::empty().await;
    for name in ["INT", "TERM", "HUP"] {
        let mut command = Command::new("env");
        command.arg("--default-signal").arg(tool_path()).arg("demo").env("DATABASE_URL", &database.url);
        let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("start the tool");
        let mut stdout = BufReader::new(child.stdout.take().expect("its output"));
        stdout.read_line(&mut String::new()).expect("its first line");
        signal(child.id(), name);
        let output = child.wait_with_output().expect("its end");
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert_eq!((output.status.code(), stderr.trim()), (Some(3), "pg-limiter: interrupted"), "{name}");
        assert_eq!(sqlx::query_scalar::<_, i64>(DEMO_SCHEMAS).fetch_one(&database.pool).await.expect("a count"), 0);
    }
}

/// The reader of the output may have ended: the work is done, and the exit code is the same.
#[tokio::test(flavor = "multi_thread")]
async fn a_closed_output_changes_no_work_and_no_exit_code() {
    let database = Database::migrated().await;
    let changed = "CREATE OR REPLACE FUNCTION rate_limit._limits_file() RETURNS text LANGUAGE sql AS $$SELECT ''$$";
    let (_dir, path) = files(&[("limits.toml", LIMITS)]);
    let limits = path("limits.toml");
    let closed = |args: &[&str]| {
        let (reader, writer) = std::io::pipe().expect("a pipe");
        drop(reader);
        let mut tool = Command::new(tool_path());
        tool.args(args).env("DATABASE_URL", &database.url).stdout(writer).stderr(Stdio::null());
        tool.status().expect("the tool").code()
    };
    for json in [&[][..], &["--json"]] {
        let closed = |args: &[&str]| closed(&[args, json].concat());
        assert_eq!(closed(&["limits", "diff", &limits]), Some(1));
        assert_eq!(closed(&["limits", "apply", &limits]), Some(0));
        assert_eq!(closed(&["limits", "diff", &limits]), Some(0));
        database.execute("SELECT rate_limit.undefine(name) FROM rate_limit.limits").await;
        assert_eq!(closed(&["reset", "a", "--must-exist"]), Some(1));
        assert_eq!(closed(&["limit", "a", "--rate", "1", "--period", "1m", "--count", "5"]), Some(2));
        database.execute(changed).await;
        assert_eq!(closed(&["migrate", "--check"]), Some(1));
        assert_eq!(closed(&["migrate"]), Some(0));
        run(Some(&database.url), &["migrate", "--check"], "").says(0, "schema \"rate_limit\" matches this release");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn twelve_processes_can_migrate_at_once() {
    for _ in 0..3 {
        let database = Database::empty().await;
        let children: Vec<_> = (0..12)
            .map(|_| {
                let mut command = Command::new(tool_path());
                command.arg("migrate").env("DATABASE_URL", &database.url);
                command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("start the tool")
            })
            .collect();
        let mut applied = 0;
        for child in children {
            let output = child.wait_with_output().expect("its output");
            let stdout = String::from_utf8_lossy(&output.stdout).into_owned();
            assert!(output.status.success(), "{stdout} {}", String::from_utf8_lossy(&output.stderr));
            applied += usize::from(stdout.contains("applied"));
        }
        assert_eq!(applied, 1, "each version is applied once");
        assert_eq!(database.rows().await, 0);
    }
}
