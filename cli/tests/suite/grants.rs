//! `pg-limiter grants` prints what a role needs for its uses, and that is enough for the tool's commands.

use pg_limiter::migrate::{Migrator, Part, Use};
use pg_limiter::queue::{Job, Queue};
use pg_limiter::{Limit, Limits, Schema};
use serde_json::Value;

use crate::binary::{files, run};
use crate::doctor::{Role, examine};
use crate::support::Database;
use crate::support::gate::limiter;

const LIMITS: &str = r#"
[limits.api]
kind = "token_bucket"
rate = 10
period = "1 day"

[limits.gate]
kind = "gate"

[limits.slots]
kind = "concurrency"
capacity = 2
"#;

#[test]
fn grants_are_printed_for_each_use_without_a_database() {
    for of in Use::ALL {
        let printed = run(None, &["grants", "--for", of.name(), "app role"], "");
        printed.says(0, &of.grants(&Schema::default(), Part::ALL, "app role").join("\n"));
        assert!(printed.stdout.contains("TO \"app role\";"), "{}", printed.stdout);
    }
    let two = run(None, &["grants", "--for", "app,worker", "a", "--schema", "Else", "--json"], "");
    let objects: Vec<Value> = two.stdout.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect();
    assert_eq!(objects.len(), 2, "{}", two.stdout);
    assert_eq!(
        (&objects[0]["for"], &objects[1]["for"], &objects[0]["role"]),
        (&"app".into(), &"worker".into(), &"a".into())
    );
    assert_eq!(objects[1]["grants"][0], "GRANT USAGE ON SCHEMA \"Else\" TO \"a\";");
    run(None, &["grants", "--for", "app", ""], "").refuses(2, &["the role is empty"]);
    let unknown = run(None, &["grants", "--for", "admin", "a"], "");
    assert!(unknown.code == Some(2) && unknown.stderr.contains("operator"), "{}", unknown.stderr);
}

/// Without the queue, each use but a worker's has its grants.
#[tokio::test]
async fn grants_name_only_what_is_installed() {
    let database = Database::empty().await;
    Migrator::default().without_queue(true).run(&database.pool).await.expect("migrated");
    let role = Role::new(&database).await;
    let printed = run(None, &["grants", "--without-queue", "--for", "app,sql,trigger,reader,operator", "app_role"], "");
    role.gets(&printed.stdout).await;
    assert!(
        printed.stdout.contains("rate_limit.definitions") && !printed.stdout.contains("queue"),
        "{}",
        printed.stdout
    );
    role.drop().await;
}

/// Runs the output of `grants` for a role, as the owner.
async fn grant(role: &Role<'_>, of: Use) {
    let printed = run(None, &["grants", "--for", of.name(), "app_role"], "");
    role.gets(&printed.stdout).await;
}

async fn a_limiter_in_use(database: &Database) {
    let limits = Limits::new().define("api", Limit::token_bucket(10, std::time::Duration::from_secs(86_400)));
    let limiter = limiter(&database.pool, limits.expect("limits"), |_| {});
    assert!(limiter.limit(("api", "k")).await.expect("a decision").is_allowed());
    let queue = Queue::new(&limiter, "q").expect("a queue");
    for _ in 0..3 {
        let _ = queue.enqueue(Job::new(("api", "k"), &1).expect("a job")).await.expect("enqueue");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_role_with_the_grants_for_operator_can_run_every_command() {
    let database = Database::migrated().await;
    a_limiter_in_use(&database).await;
    let role = Role::new(&database).await;
    grant(&role, Use::Operator).await;
    let (_dir, path) = files(&[("limits.toml", LIMITS)]);
    let file = path("limits.toml");
    let commands: [&[&str]; 21] = [
        &["limits", "apply", &file],
        &["limits", "show"],
        &["limit", "api", "k"],
        &["check", "api", "k"],
        &["peek", "api", "k"],
        &["exec", "--slots", "1", "slots", "--", "true"],
        &["block", "gate", "k", "1 hour"],
        &["peek", "gate", "k"],
        &["unblock", "gate", "k"],
        &["top", "--once"],
        &["export"],
        &["queue", "ls"],
        &["queue", "ls", "--jobs"],
        &["queue", "show", "1"],
        &["queue", "cancel", "1", "--limits", &file],
        &["prune"],
        &["prune", "--dead-older-than", "1 day"],
        &["reset", "api", "k"],
        &["reset", "api", "--all-keys"],
        &["forget", "k"],
        &["limits", "diff", &file],
    ];
    for args in commands {
        let done = run(Some(&role.url), args, "");
        assert!(!done.stderr.contains("permission denied"), "{args:?}: {}", done.stderr);
        assert!(matches!(done.code, Some(0 | 1)), "{args:?}: {} {}", done.stdout, done.stderr);
    }
    let found = examine(&role.url);
    found.has("grants", "ok", &["may: app, reader, operator"]);
    for (check, finding) in &found.by_check {
        assert!(!finding["found"].as_str().expect("a text").contains("42501"), "{check}: {finding}");
    }
    role.drop().await;
}

/// A worker reads no table; the tool does.
#[tokio::test(flavor = "multi_thread")]
async fn a_table_that_a_role_may_not_read_is_named_with_its_grants() {
    let database = Database::migrated().await;
    a_limiter_in_use(&database).await;
    let role = Role::new(&database).await;
    grant(&role, Use::Worker).await;
    for args in ["queue pause q", "queue resume q", "queue ls"] {
        let args: Vec<&str> = args.split(' ').collect();
        let words = ["permission denied for table", "grant SELECT on it: `pg-limiter grants --for operator`"];
        run(Some(&role.url), &args, "").refuses(3, &words);
    }
    role.drop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_role_with_the_grants_for_reader_looks_and_changes_nothing() {
    let database = Database::migrated().await;
    a_limiter_in_use(&database).await;
    let role = Role::new(&database).await;
    grant(&role, Use::Reader).await;
    let (_dir, path) = files(&[("limits.toml", LIMITS)]);
    let file = path("limits.toml");
    for args in
        [&["limits", "show"][..], &["export"], &["queue", "ls"], &["queue", "ls", "--jobs"], &["queue", "show", "1"]]
    {
        let done = run(Some(&role.url), args, "");
        assert_eq!((done.code, done.stderr.contains("permission")), (Some(0), false), "{args:?}: {}", done.stderr);
    }
    let top = run(Some(&role.url), &["top", "--once"], "");
    assert!(top.code == Some(0) && top.stdout.contains("api"), "{} {}", top.stdout, top.stderr);
    for args in [&["reset", "api", "k"][..], &["prune"], &["forget", "k"], &["limits", "apply", &file]] {
        let refused = run(Some(&role.url), args, "");
        assert!(refused.stderr.contains("permission denied"), "{args:?}: {}", refused.stderr);
    }
    examine(&role.url).has("grants", "ok", &["may: reader; may not: app"]);
    role.drop().await;
}
