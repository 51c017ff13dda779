//! Progress on standard error: only on a terminal, only if the work takes long, and removed in the end.

use std::io::Read;
use std::process::{Command, Stdio};

use pg_limiter::sqlx;

use crate::binary::{run, tool};
use crate::support::Database;

const WORK: &str = "resetting the limit";

#[tokio::test(flavor = "multi_thread")]
async fn slow_work_shows_progress_on_a_terminal_and_removes_it() {
    let database = Database::migrated().await;
    let mut lock = database.pool.begin().await.expect("a transaction");
    sqlx::query("LOCK TABLE rate_limit.rate_limits").execute(&mut *lock).await.expect("the lock");

    // `script` runs the command in a terminal of its own, and copies what it prints.
    let command = format!("exec {} reset a --all-keys", tool().display());
    let mut script = Command::new("script");
    script.args(["-qec", &command, "/dev/null"]).env("DATABASE_URL", &database.url).env("TERM", "xterm");
    let mut child = script.stdin(Stdio::null()).stdout(Stdio::piped()).spawn().expect("start script");
    let mut screen = child.stdout.take().expect("its output");
    let mut printed = String::new();
    let mut buffer = [0; 4096];
    while !printed.contains(WORK) {
        let length = screen.read(&mut buffer).expect("its output");
        assert_ne!(length, 0, "it ended without progress: {printed}");
        printed.push_str(&String::from_utf8_lossy(&buffer[..length]));
    }
    lock.rollback().await.expect("unlock");
    screen.read_to_string(&mut printed).expect("the rest");
    assert!(child.wait().expect("its end").success(), "{printed}");

    // The line is erased (CSI 2 K) before the result is printed.
    let (_, after) = printed.rsplit_once(WORK).expect("the progress");
    let (erased, result) = after.rsplit_once("\u{1b}[2K").unwrap_or_else(|| panic!("not erased: {printed:?}"));
    assert!(!erased.contains("nothing to reset"), "{printed:?}");
    assert!(result.trim_start().starts_with("nothing to reset"), "{printed:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn without_a_terminal_slow_work_prints_only_its_result() {
    let database = Database::migrated().await;
    // Without a database that is named, the demo would report the private server.
    let demo = run(Some(&database.url), &["demo"], "");
    assert_eq!((demo.code, demo.stderr.as_str()), (Some(0), ""));
    assert!(!demo.stdout.contains(['\u{1b}', '\r']), "{:?}", demo.stdout);
}
