//! `exec`: runs a command while it holds a slot.

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use pg_limiter::sqlx::{self, PgPool};
use pg_limiter::{Item, Limit};

use crate::binary::{files, run, tool};
use crate::support::{Database, signal};

fn start(database: &Database, options: &[&str], command: &[&str]) -> Child {
    let mut tool = Command::new(tool());
    tool.arg("exec").args(options).args(["job", "k", "--"]).args(command).env("DATABASE_URL", &database.url);
    tool.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped()).spawn().expect("the tool")
}

/// Ends the tool with its command.
fn code(child: Child) -> (Option<i32>, String) {
    let output = child.wait_with_output().expect("its output");
    (output.status.code(), String::from_utf8(output.stderr).expect("UTF-8"))
}

async fn until(pool: &PgPool, sql: &'static str) {
    let began = Instant::now();
    while !sqlx::query_scalar::<_, bool>(sql).fetch_one(pool).await.expect("an answer") {
        assert!(began.elapsed() < Duration::from_secs(60), "{sql}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

const HELD: &str = "SELECT coalesce((SELECT value > 0 FROM rate_limit.rate_limits), false)";
const FREE: &str = "SELECT coalesce((SELECT value = 0 FROM rate_limit.rate_limits), true)";

async fn free(database: &Database) -> f64 {
    let slot = Item::new(("job", Limit::concurrency(1).build().expect("a limit")), "k");
    database.limiter(pg_limiter::Limits::new()).peek(slot).await.expect("a balance").remaining()
}

#[tokio::test]
async fn a_command_runs_under_a_lease_and_gives_its_code() {
    let database = Database::migrated().await;
    let url = Some(database.url.as_str());
    let run = |args: &[&str]| run(url, args, "");
    run(&["exec", "--slots", "1", "job", "k", "--", "sh", "-c", "test -n \"$PG_LIMITER_LEASE\" && echo done"])
        .says(0, "done");
    run(&["exec", "--slots", "1", "job", "k", "--", "sh", "-c", "exit 7"]).says(7, "");
    run(&["exec", "--slots", "1", "job", "k", "--", "sh", "-c", "kill -9 $$"]).says(137, "");
    run(&["exec", "--slots", "1", "job", "k", "--", "/nonexistent"]).refuses(126, &["cannot start /nonexistent"]);
    assert_eq!(free(&database).await, 1.0);
    let (_dir, path) = files(&[
        (
            "l.toml",
            "[limits.job]\nkind = \"concurrency\"\ncapacity = 2\nlease = \"1h\"\n[limits.closed]\nkind = \"gate\"",
        ),
        ("script", "exit 7"),
    ]);
    let script = path("script");
    fs::set_permissions(&script, Permissions::from_mode(0o755)).expect("set the mode");
    run(&["exec", "--slots", "1", "job", "k", "--", &script]).refuses(126, &["cannot start", "such as #!/bin/sh"]);
    let file = path("l.toml");
    run(&["exec", "--limits", &file, "a\nb", "k", "--", "true"]).refuses(2, &["no limit \"a\\nb\""]);
    run(&["exec", "--limits", &file, "--count", "2", "job", "k", "--", "echo", "two"]).says(0, "two");
    run(&["exec", "--limits", &file, "--count", "3", "job", "--", "echo"]).refuses(2, &["the count 3", "at most 2"]);
    for (name, reason) in
        [("other", "l.toml has no limit \"other\""), ("closed", "has the kind gate, which has no slots")]
    {
        let words = [reason, "name a concurrency limit of the file, or use --slots"];
        run(&["exec", "--limits", &file, name, "--", "echo"]).refuses(2, &words);
    }
    run(&["exec", "--slots", "0", "job", "--", "echo"]).refuses(2, &["the capacity 0"]);
    let none = crate::binary::run(None, &["exec", "--slots", "1", "job", "--", "echo"], "");
    assert_eq!(none.code, Some(2), "it needs a database: {}", none.stderr);
}

#[tokio::test]
async fn a_second_command_is_refused_or_waits() {
    let database = Database::migrated().await;
    let first = start(&database, &["--slots", "1"], &["sleep", "60"]);
    until(&database.pool, HELD).await;
    let second = start(&database, &["--slots", "1"], &["true"]);
    let (code_of_second, said) = code(second);
    assert_eq!(code_of_second, Some(125));
    assert!(said.contains("no slot of \"job\" for \"k\" is free: a lease ends in "), "{said}");
    let waiting = start(&database, &["--slots", "1", "--wait", "10m"], &["sh", "-c", "exit 3"]);
    tokio::time::sleep(Duration::from_millis(500)).await;
    signal(first.id(), "TERM");
    assert_eq!(code(first).0, Some(143), "the command got the signal");
    let (code_of_waiting, said) = code(waiting);
    assert_eq!((code_of_waiting, said.as_str()), (Some(3), "pg-limiter: waiting for a slot of \"job\"\n"));
    assert_eq!(free(&database).await, 1.0);
}

/// The tool is killed: it cannot release the slot, which is free when the lease ends.
#[tokio::test]
async fn the_slot_of_a_killed_tool_is_free_when_the_lease_ends() {
    let database = Database::migrated().await;
    let mut killed = start(&database, &["--slots", "1", "--lease", "2s"], &["sleep", "5"]);
    until(&database.pool, HELD).await;
    killed.kill().expect("kill");
    killed.wait().expect("ended");
    let next = start(&database, &["--slots", "1", "--wait", "1m"], &["true"]);
    assert_eq!(code(next).0, Some(0));
}

#[tokio::test]
async fn a_command_is_stopped_or_warned_about_when_its_lease_is_lost() {
    let database = Database::migrated().await;
    let stopped = start(&database, &["--slots", "1", "--lease", "3s"], &["sleep", "60"]);
    until(&database.pool, HELD).await;
    database.execute("SELECT rate_limit.reset('job', 'k')").await; // Ends all leases.
    let (code_of_stopped, said) = code(stopped);
    assert_eq!(code_of_stopped, Some(124), "{said}");
    assert!(said.contains("the lease was lost: stopping the command"), "{said}");

    let warned = start(&database, &["--slots", "1", "--lease", "3s", "--on-lost", "warn"], &["sleep", "4"]);
    until(&database.pool, HELD).await;
    database.execute("SELECT rate_limit.reset('job', 'k')").await;
    let (code_of_warned, said) = code(warned);
    assert_eq!(code_of_warned, Some(0), "{said}");
    assert!(said.contains("the lease was lost, and the command goes on"), "{said}");
    until(&database.pool, FREE).await;
}
