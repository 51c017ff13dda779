//! `exec --once-every`: a job of many machines runs once in a window.

use std::fs;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use pg_limiter::sqlx;

use crate::binary::{Run, files, tool};
use crate::support::{Database, signal};

const RUNNING: &str = "SELECT coalesce((SELECT value > 0 FROM rate_limit.rate_limits WHERE name = 'nightly'), false)";
const FREE: &str = "SELECT coalesce((SELECT value = 0 FROM rate_limit.rate_limits WHERE name = 'nightly'), true)";
const BLOCKED: &str =
    "SELECT EXISTS (SELECT FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock')";
/// No window ends while a test runs.
const ONCE: [&str; 4] = ["--once-every", "100 years", "--zone", "Europe/Berlin"];

fn start(database: &Database, options: &[&str], script: &str) -> Child {
    let mut tool = Command::new(tool());
    tool.arg("exec").args(ONCE).args(options).args(["nightly", "--", "sh", "-c", script]);
    tool.env("DATABASE_URL", &database.url).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped());
    tool.spawn().expect("the tool")
}

fn end(child: Child) -> Run {
    let output = child.wait_with_output().expect("its end");
    let text = |bytes| String::from_utf8(bytes).expect("UTF-8");
    Run { code: output.status.code(), stdout: text(output.stdout), stderr: text(output.stderr) }
}

fn run(database: &Database, options: &[&str], script: &str) -> Run {
    end(start(database, options, script))
}

async fn until(database: &Database, sql: &'static str) {
    let waiting = async {
        while !sqlx::query_scalar::<_, bool>(sql).fetch_one(&database.pool).await.expect("an answer") {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(120), waiting).await.expect(sql);
}

#[tokio::test]
async fn a_job_runs_once_in_a_window() {
    let database = Database::migrated().await;
    let (_dir, path) = files(&[]);
    let script = format!("echo run >> {}; sleep 0.2", path("runs"));
    let servers: Vec<Child> = (0..3).map(|_| start(&database, &[], &script)).collect();
    let mut codes: Vec<_> = servers.into_iter().map(|server| end(server).code).collect();
    codes.sort_unstable();
    assert_eq!(codes[0], Some(0));
    assert!(codes[1..].iter().all(|code| [Some(123), Some(125)].contains(code)), "{codes:?}");
    // A server whose clock is late.
    run(&database, &[], &script).refuses(123, &["\"nightly\" was run in this window", "the next window begins in "]);
    run(&database, &["--wait", "1h"], &script).refuses(123, &["was run in this window"]);
    run(&database, &["--exit-code", "done=0"], &script).refuses(0, &["was run in this window"]);
    assert_eq!(fs::read_to_string(path("runs")).expect("a log"), "run\n");
}

#[tokio::test]
async fn a_job_that_runs_elsewhere_is_not_started() {
    let database = Database::migrated().await;
    let running = start(&database, &[], "sleep 3001");
    until(&database, RUNNING).await;
    run(&database, &[], "true").refuses(125, &["no slot of \"nightly\" is free: it runs elsewhere"]);
    run(&database, &["--exit-code", "no-slot=0"], "true").refuses(0, &["no slot"]);
    // It waits, and tries after the other has failed.
    let waiting = start(&database, &["--wait", "1h"], "exit 0");
    signal(running.id(), "TERM");
    assert_eq!((end(running).code, end(waiting).code), (Some(143), Some(0)));
}

#[tokio::test]
async fn a_job_that_fails_may_be_tried_again_so_many_times() {
    let database = Database::migrated().await;
    let twice = ["--attempts", "2"];
    assert_eq!(run(&database, &twice, "exit 7").code, Some(7));
    assert_eq!(run(&database, &twice, "kill -9 $$").code, Some(137));
    let over = run(&database, &twice, "true");
    over.refuses(122, &["\"nightly\" has used all of its 2 attempts in this window"]);
    assert_eq!(run(&database, &["--attempts", "3"], "exit 7").code, Some(7));
    run(&database, &["--attempts", "3"], "true").refuses(122, &["all of its 3 attempts"]);
    database.execute("SELECT rate_limit.reset('nightly.attempts', '')").await;
    assert_eq!(run(&database, &twice, "exit 0").code, Some(0));
    run(&database, &twice, "true").refuses(123, &["was run"]);
    database.execute("SELECT rate_limit.reset('nightly.attempts', ''), rate_limit.reset('nightly.run', '')").await;
    assert_eq!(run(&database, &["--attempts", "1"], "exit 7").code, Some(7));
    run(&database, &["--attempts", "1"], "true").refuses(122, &["\"nightly\" has used its only attempt in this"]);
    database.execute("SELECT rate_limit.reset('nightly.attempts', '')").await;
    // A command that cannot be started has failed.
    let args = [&["exec"], &ONCE[..], &["nightly", "other", "--", "/nonexistent"]].concat();
    for code in [126, 126, 126, 122] {
        crate::binary::run(Some(&database.url), &args, "").refuses(code, &[]);
    }
}

#[tokio::test]
async fn a_window_ends() {
    let database = Database::migrated().await;
    let args = ["exec", "--once-every", "3s", "short", "--", "echo", "done"];
    let once = || crate::binary::run(Some(&database.url), &args, "");
    let mut codes = Vec::new();
    while codes.iter().filter(|code| **code == Some(0)).count() < 3 {
        codes.push(once().code);
        assert!(codes.len() < 1000 && codes.iter().all(|code| [Some(0), Some(123)].contains(code)), "{codes:?}");
    }
}

/// The tool is killed: whether its command succeeds is not known, so the command is not run again.
#[tokio::test]
async fn a_run_whose_outcome_is_not_known_counts() {
    let database = Database::migrated().await;
    let mut killed = start(&database, &["--lease", "3s"], "exec sleep 1");
    until(&database, RUNNING).await;
    killed.kill().expect("kill");
    killed.wait().expect("ended");
    assert_eq!(run(&database, &["--wait", "10m"], "true").code, Some(123));

    database.execute("SELECT rate_limit.reset('nightly.run'), rate_limit.reset('nightly')").await;
    let lost = start(&database, &["--lease", "3s"], "sleep 3001");
    until(&database, RUNNING).await;
    database.execute("SELECT rate_limit.reset('nightly', '')").await; // Ends all leases.
    assert_eq!(end(lost).code, Some(124));
    assert_eq!(run(&database, &[], "true").code, Some(123));

    // The command fails after its lease was lost: another may run already.
    database.execute("SELECT rate_limit.reset('nightly.run')").await;
    let (_dir, path) = files(&[("work", "")]);
    let script = format!("while [ -e {} ]; do sleep 0.05; done; exit 1", path("work"));
    let lost = start(&database, &["--on-lost", "warn"], &script);
    until(&database, RUNNING).await;
    database.execute("SELECT rate_limit.reset('nightly', '')").await;
    fs::remove_file(path("work")).expect("remove");
    assert_eq!(end(lost).code, Some(1));
    assert_eq!(run(&database, &[], "true").code, Some(123));
}

#[tokio::test]
async fn a_signal_before_the_start_returns_the_tokens() {
    let database = Database::migrated().await;
    let mut lock = database.pool.begin().await.expect("a transaction");
    sqlx::query("LOCK TABLE rate_limit.rate_limits").execute(&mut *lock).await.expect("the lock");
    let waiting = start(&database, &["--attempts", "1"], "true");
    until(&database, BLOCKED).await;
    signal(waiting.id(), "TERM");
    tokio::time::sleep(Duration::from_millis(200)).await;
    lock.rollback().await.expect("unlock");
    assert_eq!(end(waiting).code, Some(143));
    assert_eq!(run(&database, &["--attempts", "1"], "true").code, Some(0));
}

/// Three machines start the same jobs. Their tools and jobs are killed, and jobs fail.
#[tokio::test(flavor = "multi_thread")]
async fn a_job_never_runs_twice_at_once_and_never_succeeds_twice_whatever_is_killed() {
    let database = Database::migrated().await;
    let (_dir, path) = files(&[("overlaps", "")]);
    for round in 0..12 {
        let (busy, succeeded) = (path(&format!("busy{round}")), path(&format!("succeeded{round}")));
        let fails = if round % 3 == 0 { "exit 1" } else { ":" };
        let script = format!(
            "mkdir {busy} || echo {round} >> {}; sleep 0.$(({round} % 4)); rmdir {busy}; {fails}; echo run >> {succeeded}",
            path("overlaps")
        );
        let mut servers = Vec::new();
        for machine in 0..3 {
            let mut tool = Command::new(tool());
            let key = format!("round {round}");
            tool.arg("exec")
                .args(ONCE)
                .args(["--lease", "2s", "--wait", "5s", "nightly", &key, "--", "sh", "-c", &script]);
            tool.env("DATABASE_URL", &database.url).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
            servers.push(tool.spawn().expect("the tool"));
            tokio::time::sleep(Duration::from_millis(fastrand::u64(0..150))).await;
            if fastrand::u32(0..3) == 0 {
                let _ = servers[machine].kill(); // With SIGKILL. It may have ended.
            }
        }
        for mut server in servers {
            let code = server.wait().expect("its end").code();
            let known = [Some(0), Some(1), Some(122), Some(123), Some(124), Some(125), None];
            assert!(known.contains(&code), "round {round}: {code:?}");
        }
        let runs = fs::read_to_string(&succeeded).unwrap_or_default();
        assert!(["", "run\n"].contains(&runs.as_str()), "round {round}: {runs:?}");
    }
    assert_eq!(fs::read_to_string(path("overlaps")).expect("a log"), "");
}

#[tokio::test]
async fn options_of_a_window_are_checked() {
    let database = Database::migrated().await;
    let run = |options: &[&str]| {
        let args = [&["exec", "nightly"], options, &["--", "true"]].concat();
        crate::binary::run(Some(&database.url), &args, "")
    };
    run(&["--once-every", "30m", "--zone", "Europe/Berlin"]).refuses(2, &["--zone", "30m", "--once-every \"1 day\""]);
    run(&["--once-every", "1 day", "--zone", "Mars/Olympus"]).refuses(2, &["Mars/Olympus"]);
    run(&["--once-every", "1 day", "--anchor", "noon"]).refuses(2, &["noon"]);
    for (options, words) in [
        (&["--once-every", "daily"][..], ["'daily'", "such as \"1 day\""]),
        (&["--once-every", "1 day", "--slots", "1"], ["--once-every", "--slots"]),
        (&["--once-every", "1 day", "--attempts", "0"], ["'0'", "--attempts"]),
        (&["--once-every", "1 day", "--attempts", "1001"], ["'1001'", "--attempts"]),
        (&["--slots", "1", "--zone", "UTC"], ["--slots", "--zone"]),
    ] {
        let refused = run(options);
        assert_eq!(refused.code, Some(2), "{options:?}");
        assert!(words.iter().all(|word| refused.stderr.contains(word)), "{}", refused.stderr);
    }
    // Options of a window beside slots, which have none.
    let (_dir, path) = files(&[("l.toml", "[limits.nightly]\nkind = \"concurrency\"\ncapacity = 2\nlease = \"1h\"")]);
    for slots in [["--slots", "1"], ["--limits", &path("l.toml")]] {
        for option in [
            ["--zone", "UTC"],
            ["--anchor", "2026-01-01"],
            ["--attempts", "5"],
            ["--exit-code", "done=0"],
            ["--exit-code", "attempts=0"],
        ] {
            let option_or_outcome = option.join(" ").replace("=0", "");
            let named = if option[0] == "--exit-code" { &*option_or_outcome } else { option[0] };
            let refused = format!("{named} applies only to --once-every, not to {}: ", slots[0]);
            run(&[slots, option].concat()).refuses(2, &[&refused]);
        }
    }
    assert_eq!(run(&["--slots", "1", "--exit-code", "no-slot=0"]).code, Some(0));
    let anchored = ["--once-every", "1 day", "--zone", "Europe/Berlin", "--anchor", "2026-01-01 12:00"];
    assert_eq!(run(&anchored).code, Some(0));
    until(&database, FREE).await;
}

#[tokio::test]
async fn the_commands_of_the_guide_run() {
    let database = Database::migrated().await;
    let page = crate::support::guide::chapter("scheduled_jobs");
    let commands: Vec<&str> =
        page.lines().filter_map(|line| Some(line.split_once("pg-limiter exec --once")?.1)).collect();
    assert_eq!(commands.len(), 3, "{commands:?}");
    // The last one runs the job only if a day has begun meanwhile.
    for (command, codes) in commands.into_iter().zip([[0, 0], [0, 0], [0, 123]]) {
        let command = command.replace("/opt/app/report.sh", "true").replace("./report.sh", "true");
        let mut shell = Command::new("sh");
        shell.args(["-c", &format!("{} exec --once{command}", tool().display())]).env("DATABASE_URL", &database.url);
        let status = shell.stderr(Stdio::null()).status().expect("a shell");
        assert!(codes.map(Some).contains(&status.code()), "{command}: {status}");
    }
}
