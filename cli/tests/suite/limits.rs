//! `limits`, and the commands that use stored limits.

use pg_limiter::migrate::Use;
use pg_limiter::sqlx::{self, Connection, PgConnection};

use crate::binary::{files, run};
use crate::doctor::Role;
use crate::support::Database;
use crate::support::node::Node;

const LIMITS: &str = r#"
    [limits.api]
    kind = "token_bucket"
    rate = 10
    period = "1d"
    capacity = 20
    [limits.budget]
    kind = "calendar_window"
    rate = 1000
    every = "1 month"
    zone = "Europe/Berlin"
    [limits.reports]
    kind = "concurrency"
    capacity = 3
"#;

#[tokio::test(flavor = "multi_thread")]
async fn a_limits_file_is_stored_compared_and_shown() {
    let database = Database::migrated().await;
    let changed = LIMITS.replace("rate = 10\n", "rate = 12\n").replace("[limits.reports]", "[limits.exports]");
    let wrong = "[limits.api]\nkind = \"x\"";
    let (_dir, path) = files(&[("limits.toml", LIMITS), ("changed.toml", &changed), ("wrong.toml", wrong)]);
    let tool = |args: &[&str]| {
        let args = args.iter().map(|arg| if arg.ends_with(".toml") { path(arg) } else { (*arg).to_owned() });
        let args: Vec<String> = args.collect();
        run(Some(&database.url), &args.iter().map(String::as_str).collect::<Vec<_>>(), "")
    };
    tool(&["limits", "show"]).says(0, "no limits are stored");
    let api = "api: token_bucket, 10 per 1d, capacity 20";
    let budget = "budget: calendar_window, 1000 per 1 month, zone Europe/Berlin";
    let reports = "reports: concurrency, 3 at a time, lease 30s";
    let all = format!("+ {api}\n+ {budget}\n+ {reports}");
    tool(&["limits", "diff", "limits.toml"]).says(1, &all);
    tool(&["limits", "show"]).says(0, "no limits are stored");
    tool(&["limits", "apply", "limits.toml"]).says(0, &all);
    tool(&["limits", "diff", "limits.toml"]).says(0, "the stored limits are those of the file");
    tool(&["limits", "show"]).says(0, &format!("{api}\n{budget}\n{reports}"));

    let json = tool(&["limits", "show", "--json"]);
    assert_eq!(json.code, Some(0));
    let (_copy, copied) = files(&[("copy.json", &json.stdout)]);
    tool(&["limits", "diff", &copied("copy.json")]).says(0, "the stored limits are those of the file");

    let changes =
        format!("- {api}\n+ api: token_bucket, 12 per 1d, capacity 20\n+ exports: concurrency, 3 at a time, lease 30s");
    tool(&["limits", "diff", "changed.toml"]).says(1, &changes);
    tool(&["limits", "apply", "changed.toml", "--undefine-others"]).says(0, &format!("{changes}\n- {reports}"));
    tool(&["limits", "apply", "changed.toml", "--json"]).says(0, r#"{"defined": [], "undefined": []}"#);
    let history = tool(&["limits", "show", "--history", "api"]);
    let lines: Vec<&str> = history.stdout.lines().collect();
    assert!(lines.len() == 2 && lines[0].contains("12 per 1d") && lines[1].contains("10 per"), "{lines:?}");
    let history = tool(&["limits", "show", "--history", "reports"]).stdout;
    assert!(history.lines().next().is_some_and(|line| line.ends_with("undefined")), "{history}");
    tool(&["limits", "show", "--history", "never"]).refuses(3, &["\"never\" has never been stored"]);
    tool(&["limits", "apply", "wrong.toml"]).refuses(2, &["limit \"api\"", "kind"]);
    tool(&["limits", "apply", "missing.toml"]).refuses(2, &["cannot read"]);
    run(None, &["limits", "show"], "").refuses(2, &["no database given"]);
}

const EVERY_KIND: &str = r#"[limits]
    a = {kind = "token_bucket", rate = 0.1, period = "1500ms", capacity = 0.1, max_reserved = 0, shards = 1}
    b = {kind = "fixed_window", rate = 10, period = "1d", start = "31h", max_reserved = 4}
    c = {kind = "sliding_window", rate = 10, period = "1h", resolution = 1, start = "0s"}
    d = {kind = "calendar_window", rate = 1000, every = "1 months", zone = "UTC", anchor = "1970-01-01T00:00"}
    e = {kind = "calendar_window", rate = 5, every = "2 weeks", zone = "europe/berlin", anchor = "2026-01-05 09:30:00"}
    f = {kind = "calendar_window", rate = 5, every = "1 week", anchor = "1970-01-05"}
    g = {kind = "concurrency", capacity = 3}
    h = {kind = "gate"}
    "#;

/// `diff` writes nothing: it works for a role that may only read, and does not wait for a definition that is not committed.
#[tokio::test(flavor = "multi_thread")]
async fn diff_only_reads() {
    let database = Database::migrated().await;
    let role = Role::new(&database).await;
    role.gets(&run(None, &["grants", "--for", Use::Reader.name(), "app_role"], "").stdout).await;
    role.gets("ALTER ROLE app_role SET default_transaction_read_only = on").await;
    let wrong = LIMITS.replace("Europe/Berlin", "Nowhere/Land");
    let (_dir, path) = files(&[("limits.toml", LIMITS), ("every.toml", EVERY_KIND), ("wrong.toml", &wrong)]);
    let diff = |file: &str| run(Some(&role.url), &["limits", "diff", &path(file)], "");
    let mut other = database.pool.begin().await.expect("a transaction");
    let define = "SELECT rate_limit.define('api', 'gate')";
    sqlx::raw_sql(define).execute(&mut *other).await.expect("a definition");
    let new = diff("limits.toml");
    assert!(new.code == Some(1) && new.stdout.contains("+ api: "), "{}{}", new.stdout, new.stderr);
    other.rollback().await.expect("rolled back");
    // As `apply` refuses it: only the server knows the zones.
    let apply = run(Some(&database.url), &["limits", "apply", &path("wrong.toml")], "");
    apply.refuses(2, &["Nowhere/Land"]);
    diff("wrong.toml").refuses(2, &[apply.stderr.trim()]);
    // As `apply` compares, whatever the form in which an option is given.
    assert_eq!(run(Some(&database.url), &["limits", "apply", &path("every.toml")], "").code, Some(0));
    diff("every.toml").says(0, "the stored limits are those of the file");
    role.drop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn apply_does_not_wait_without_end() {
    let (_dir, path) = files(&[("limits.toml", LIMITS)]);
    let node = Node::start(&["synchronous_standby_names=nobody", "synchronous_commit=local"]).await;
    let mut conn = PgConnection::connect(&node.url()).await.expect("connect");
    pg_limiter::migrate::migrate_on(&mut conn).await.expect("migrate");
    let mut other = conn.begin().await.expect("a transaction");
    let define = "SELECT rate_limit.define('api', 'gate')";
    sqlx::raw_sql(define).execute(&mut *other).await.expect("a definition");
    run(Some(&node.url()), &["limits", "apply", &path("limits.toml")], "")
        .refuses(3, &["another transaction changes", "nothing was stored", "55P03"]);
    other.rollback().await.expect("rolled back");
    // The synchronous standby is away.
    let url = format!("{}?options=-c%20synchronous_commit=on", node.url());
    run(Some(&url), &["limits", "apply", &path("limits.toml")], "")
        .refuses(3, &["may or may not be stored", "synchronous standby", "run `pg-limiter limits diff`"]);
}

/// Whatever the kind and its options.
#[tokio::test(flavor = "multi_thread")]
async fn the_history_shows_a_limit_as_show_does() {
    let database = Database::migrated().await;
    let all = r#"
        a = {kind = "token_bucket", rate = 0.5, period = "1500ms", capacity = 3, max_reserved = 0, shards = 2}
        b = {kind = "fixed_window", rate = 10, period = "1d", start = "7h", max_reserved = 4}
        c = {kind = "sliding_window", rate = 10, period = "1h", resolution = 6, start = "1m"}
        d = {kind = "calendar_window", rate = 1000, every = "1 month"}
        e = {kind = "calendar_window", rate = 5, every = "2 weeks", zone = "Europe/Berlin", anchor = "2026-01-05 09:30"}
        f = {kind = "calendar_window", rate = 5, every = "1 week", anchor = "2026-01-06"}
        g = {kind = "concurrency", capacity = 3, lease = "1h"}
        h = {kind = "gate"}
        "#;
    let (_dir, path) = files(&[("limits.toml", &format!("[limits]\n{all}"))]);
    let tool = |args: &[&str]| run(Some(&database.url), args, "");
    assert_eq!(tool(&["limits", "apply", &path("limits.toml")]).code, Some(0));
    let shown = tool(&["limits", "show"]).stdout;
    assert_eq!(shown.lines().count(), 8, "{shown}");
    for line in shown.lines() {
        let (name, rule) = line.split_once(": ").expect("a name");
        let history = tool(&["limits", "show", "--history", name]).stdout;
        assert!(history.trim_end().ends_with(&format!("  {rule}")), "{rule} is not in {history}");
    }
}

/// `limit` takes tokens, and no slots: the remedy is another command.
#[tokio::test(flavor = "multi_thread")]
async fn limit_names_exec_for_a_concurrency_limit() {
    let database = Database::migrated().await;
    let tool = |args: &str| run(Some(&database.url), &args.split(' ').collect::<Vec<_>>(), "");
    database.execute("SELECT rate_limit.define('jobs', 'concurrency', capacity => 3)").await;
    for args in ["limit jobs k", "limit jobs k --capacity 3 --lease 1m", "limit jobs k --reserve"] {
        tool(args).refuses(2, &["\"jobs\" counts slots", "use `pg-limiter exec`"]);
    }
    assert_eq!((tool("check jobs k").code, tool("peek jobs k").code), (Some(0), Some(0)));
    let json = tool("limit jobs k --json");
    assert!(json.code == Some(2) && json.stdout.contains("pg-limiter exec"), "{}{}", json.stdout, json.stderr);
}

#[tokio::test(flavor = "multi_thread")]
async fn commands_use_the_stored_limits() {
    let database = Database::migrated().await;
    let tool = |args: &str| run(Some(&database.url), &args.split(' ').collect::<Vec<_>>(), "");
    tool("limit api u1").refuses(2, &["no limit given", "pg-limiter limits apply"]);
    for command in ["limit", "check", "peek"] {
        tool(&format!("{command} nope u1"))
            .refuses(2, &["no limit \"nope\"", "and no other", "--limits FILE", "--rate"]);
    }
    tool("limits show --history nope").refuses(3, &["\"nope\" has never been stored", "no limit is stored"]);
    run(None, &["limit", "nope"], "").refuses(2, &["no limit given: use --limits FILE"]);
    database.execute("SELECT rate_limit.define('api', 'token_bucket', 1, '1 day', capacity => 2)").await;
    tool("limit nope u1").refuses(2, &["no stored limit has the name \"nope\"", "the only stored limit is \"api\""]);
    database.execute("SELECT rate_limit.define('b\"\n', 'gate')").await;
    for command in ["limit", "check", "peek"] {
        let stored = "the stored limits are \"api\", \"b\"\\n\"";
        let words = ["no stored limit has the name \"nope\"", stored, "--limits FILE", "--rate and --period"];
        tool(&format!("{command} nope u1")).refuses(2, &words);
    }
    tool("limits show --history nope").refuses(3, &["has never been stored", "the stored limits are \"api\""]);
    // A part of a rule does not mean the stored limit.
    tool("limit api u1 --capacity 5").refuses(2, &["no limit given"]);
    database.execute("SELECT rate_limit.undefine('b\"\n')").await;
    tool("limit api u1").says(0, "allowed, 1 left");
    assert_eq!(tool("check api u1 --count 2").code, Some(1));
    let peeked = tool("peek api u1").stdout;
    assert!(peeked.starts_with("1 left, full in 23h 59m"), "{peeked}");
    // A rule on the command line is used instead.
    tool("peek api u2 --rate 5 --period 1d").says(0, "5 left, full");
    let top = tool("top --once --interval 200ms");
    assert!(top.stdout.contains("api: token_bucket, 1 per 1d, capacity 2"), "{}{}", top.stdout, top.stderr);
    let simulated = tool("simulate --for 1d --calls 10/h --traffic constant");
    assert!(simulated.stdout.contains("api"), "{}{}", simulated.stdout, simulated.stderr);
    tool("simulate --limit sms").refuses(2, &["the database defines no limit \"sms\""]);
    tool("simulate --limit api --kind fixed_window").refuses(2, &["--limit api names", "leave out --limit"]);
    tool("limit api u1 --kind fixed_window").refuses(2, &["no limit given"]);
    let call = |limit: &str| format!(r#"{{"at": 1767225600000, "op": "limit", "limit": "{limit}", "key": "u1"}}"#);
    let (_dir, path) = files(&[
        ("log", "203.0.113.1 - - [01/Jan/2026:00:00:00 +0000] \"GET / HTTP/1.1\" 200 5\n"),
        ("slots.toml", "[limits.x]\nkind = \"concurrency\"\ncapacity = 2\nlease = \"30s\"\n"),
    ]);
    let replayed = run(Some(&database.url), &["replay", "--events", "-"], &call("api"));
    assert_eq!((replayed.code, replayed.stderr.as_str()), (Some(0), ""), "{}", replayed.stdout);
    let log = tool(&format!("replay --access-log {} --apply api", path("log")));
    assert!(log.code == Some(0) && log.stdout.contains("capacity 2"), "{}{}", log.stdout, log.stderr);
    tool(&format!("replay --access-log {} --apply sms", path("log"))).refuses(2, &["the database defines no limit"]);
    let slots = ["replay", "--limits", &path("slots.toml"), "--access-log", &path("log"), "--apply", "x"];
    run(Some(&database.url), &slots, "").refuses(2, &["\"x\" counts slots"]);
    run(None, &["replay", "--events", "-"], &call("api")).refuses(2, &["no limits given", "--limits FILE"]);
}
