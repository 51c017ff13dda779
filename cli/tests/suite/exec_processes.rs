//! `exec`: nothing of the command lives when its slots are given back.

use std::fs;
use std::io::Write;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use pg_limiter::sqlx::{self, PgPool};

use crate::binary::{files, tool};
use crate::support::{Database, signal};

const FREE: &str = "SELECT coalesce((SELECT value = 0 FROM rate_limit.rate_limits), true)";
const HELD: &str = "SELECT coalesce((SELECT value > 0 FROM rate_limit.rate_limits), false)";
const LEASE: &str = "SELECT detail[2] FROM rate_limit.rate_limits"; // Its end.
const BLOCKED: &str =
    "SELECT EXISTS (SELECT FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock')";

/// A run of the tool. The processes of its command are found by a variable in their environment.
struct Run {
    tool: Child,
    mark: String,
}

impl Run {
    fn start(database: &Database, options: &[&str], script: &str) -> Self {
        let mark = format!("PG_LIMITER_TEST_MARK={:016x}", fastrand::u64(..));
        // The suite may run in the background of a shell, where signals are ignored.
        let mut tool = Command::new("env");
        tool.arg("--default-signal").arg(self::tool()).args(["exec", "--slots", "1"]);
        tool.args(options).args(["job", "k", "--", "sh", "-c", script]);
        tool.env("DATABASE_URL", &database.url).env("PG_LIMITER_TEST_MARK", mark.split_once('=').expect("a value").1);
        let tool = tool.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped()).spawn().expect("the tool");
        Self { tool, mark }
    }

    /// The processes of the command that live.
    fn alive(&self) -> Vec<u32> {
        let ids =
            fs::read_dir("/proc").expect("/proc").filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok());
        let is_marked = |id: &u32| {
            // A process that has ended has no environment.
            let variables = fs::read(format!("/proc/{id}/environ")).unwrap_or_default();
            variables.split(|byte| *byte == 0).any(|variable| variable == self.mark.as_bytes())
        };
        let tool = fs::canonicalize(tool()).expect("the tool");
        let is_tool = |id: &u32| fs::read_link(format!("/proc/{id}/exe")).is_ok_and(|program| program == tool);
        ids.filter(|id| is_marked(id) && !is_tool(id) && *id != self.tool.id()).collect()
    }

    async fn until_alive(&self, count: usize) {
        until(|| self.alive().len() == count, || format!("{:?}, not {count}", self.alive())).await;
    }

    /// Waits for the tool, and checks that no process of its command lives then.
    fn ends(mut self, code: i32) {
        let (began, mut ended) = (Instant::now(), None);
        while ended.is_none() && began.elapsed() < Duration::from_secs(120) {
            ended = self.tool.try_wait().expect("a status");
            std::thread::sleep(Duration::from_millis(5));
        }
        let alive = self.alive();
        if ended.is_none() {
            let _ = self.tool.kill();
        }
        for id in &alive {
            signal(*id, "KILL");
        }
        let said = std::io::read_to_string(self.tool.stderr.take().expect("its messages")).expect("UTF-8");
        assert_eq!((ended.map(|ended| ended.code()), alive), (Some(Some(code)), vec![]), "{said}");
    }
}

async fn until(is_so: impl Fn() -> bool, what: impl Fn() -> String) {
    let began = Instant::now();
    while !is_so() {
        assert!(began.elapsed() < Duration::from_secs(120), "{}", what());
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

async fn until_sql(pool: &PgPool, sql: &'static str) {
    let began = Instant::now();
    while !sqlx::query_scalar::<_, bool>(sql).fetch_one(pool).await.expect("an answer") {
        assert!(began.elapsed() < Duration::from_secs(120), "{sql}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

async fn is_free(database: &Database) -> bool {
    sqlx::query_scalar(FREE).fetch_one(&database.pool).await.expect("an answer")
}

async fn until_renewed(database: &Database) {
    until_sql(&database.pool, HELD).await;
    let end = async || sqlx::query_scalar::<_, f64>(LEASE).fetch_one(&database.pool).await.expect("a lease");
    let first = end().await;
    while end().await == first {
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

#[tokio::test]
async fn every_process_of_a_command_ends_with_it() {
    let database = Database::migrated().await;
    for (name, number) in [("TERM", 15), ("INT", 2), ("HUP", 1), ("QUIT", 3), ("USR1", 10)] {
        let run = Run::start(&database, &[], "sleep 3001 | cat");
        run.until_alive(3).await;
        signal(run.tool.id(), name);
        run.ends(128 + number);
        assert!(is_free(&database).await, "{name}");
    }
    // The command ends by itself: its background processes end, too.
    let run = Run::start(&database, &[], "sleep 3001 & exit 5");
    run.ends(5);
    // A process in a session of its own, whose parent has ended.
    let run = Run::start(&database, &[], "(setsid sleep 3001 &); exec sleep 3002");
    run.until_alive(2).await;
    signal(run.tool.id(), "TERM");
    run.ends(143);
    assert!(is_free(&database).await);
}

#[tokio::test]
async fn every_process_of_a_command_ends_if_the_lease_is_lost() {
    let database = Database::migrated().await;
    let run = Run::start(&database, &["--lease", "3s"], "setsid sleep 3001 & sleep 3002 | cat");
    run.until_alive(4).await;
    database.execute("SELECT rate_limit.reset('job', 'k')").await; // Ends all leases.
    run.ends(124);
}

/// The guard may end the command before the tool does. Neither is a failure of the command, even if the database answers again.
#[tokio::test]
async fn a_lease_that_is_not_renewed_in_time_is_lost() {
    let run_until_lost = async |tenths: u32| {
        let database = Database::migrated().await;
        let lease = format!("{}ms", 100 * tenths);
        let run = Run::start(&database, &["--lease", &lease], "exec sleep 3001");
        until_renewed(&database).await;
        let mut locking = database.pool.begin().await.expect("begin");
        let lock = "LOCK TABLE rate_limit.rate_limits IN ACCESS EXCLUSIVE MODE";
        sqlx::query(lock).execute(&mut *locking).await.expect("lock");
        run.until_alive(0).await;
        locking.rollback().await.expect("roll back");
        run.ends(124);
    };
    // The guard rounds its time to tenths of a second.
    futures_util::future::join_all((40..52).map(run_until_lost)).await;
}

#[tokio::test]
async fn what_ignores_sigterm_is_killed_after_the_grace() {
    let database = Database::migrated().await;
    let run =
        Run::start(&database, &["--grace", "300ms"], "(trap '' TERM; while :; do sleep 0.1; done) & exec sleep 3001");
    run.until_alive(3).await;
    signal(run.tool.id(), "TERM");
    run.ends(143);
    let run =
        Run::start(&database, &["--grace", "300ms"], "trap '' TERM; echo > /dev/null; sleep 3001 & wait; sleep 3002");
    run.until_alive(2).await;
    signal(run.tool.id(), "TERM");
    run.ends(137);
    assert!(is_free(&database).await);
}

/// Nothing of the command lives when the lease of a killed tool ends.
#[tokio::test]
async fn the_command_of_a_killed_tool_ends_before_the_lease() {
    let database = Database::migrated().await;
    let (_dir, path) = files(&[]);
    // The tool passes signals on once it watches over the command.
    for (grace, setup) in [("1h", "trap '' USR1; sleep 3001 | cat"), ("300ms", "trap '' TERM USR1; sleep 3001")] {
        let (started, watched) = (path(&format!("started{grace}")), path(&format!("watched{grace}")));
        let script = format!("{setup} & trap ': > {watched}' USR1; : > {started}; while :; do sleep 0.05; done");
        let mut run = Run::start(&database, &["--lease", "1h", "--grace", grace], &script);
        until(|| fs::exists(&started).unwrap_or(false), || "not started".to_owned()).await;
        signal(run.tool.id(), "USR1");
        until(|| fs::exists(&watched).unwrap_or(false), || "no signal".to_owned()).await;
        run.tool.kill().expect("kill");
        run.tool.wait().expect("ended");
        run.until_alive(0).await;
        assert!(!is_free(&database).await);
        database.execute("SELECT rate_limit.reset('job', 'k')").await;
    }
}

/// The processes that hold this file open.
fn holders(file: &str) -> usize {
    let file = fs::canonicalize(file).expect("the file");
    let processes =
        fs::read_dir("/proc").expect("/proc").filter_map(|entry| fs::read_dir(entry.ok()?.path().join("fd")).ok());
    let is_file =
        |fd: std::io::Result<fs::DirEntry>| fd.is_ok_and(|fd| fs::read_link(fd.path()).is_ok_and(|to| to == file));
    processes.map(|mut fds| usize::from(fds.any(is_file))).sum()
}

/// The tool's guard of the command has a process that waits. None may stay, and hold what was inherited, such as a lock.
#[tokio::test]
async fn a_killed_tool_leaves_no_process_of_its_own() {
    let database = Database::migrated().await;
    let (_dir, path) = files(&[("low", ""), ("high", "")]);
    let (low, high) = (path("low"), path("high"));
    let mut bash = Command::new("bash");
    let script = format!("exec 9>{low} 12>{high}; exec \"$@\"");
    bash.args(["-c", &script, "-"]).arg(self::tool()).args(["exec", "--slots", "1", "--lease", "3s", "job", "k"]);
    bash.args(["--", "sleep", "3001"]).env("DATABASE_URL", &database.url);
    let mut tool = bash.stdin(Stdio::null()).stderr(Stdio::null()).spawn().expect("the tool");
    // The lease was renewed several times, and the guard heard of it.
    until_sql(&database.pool, HELD).await;
    let first: f64 = sqlx::query_scalar(LEASE).fetch_one(&database.pool).await.expect("a lease");
    while sqlx::query_scalar::<_, f64>(LEASE).fetch_one(&database.pool).await.expect("a lease") < first + 3e6 {
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    // The tool, the command, the guard, its timer and the `sleep` of that.
    until(|| holders(&high) == 5, || format!("{} processes hold the file", holders(&high))).await;
    assert_eq!(holders(&low), 2, "the tool and the command");
    tool.kill().expect("kill");
    tool.wait().expect("ended");
    until(|| holders(&high) == 0, || format!("{} processes are left", holders(&high))).await;
}

/// A stopped tool cannot renew the lease. When others get its slot, nothing of its command lives.
#[tokio::test]
async fn the_command_of_a_stopped_tool_ends_before_the_lease() {
    let database = Database::migrated().await;
    for script in ["sleep 3001 | cat", "trap '' TERM; sleep 3001 & sleep 3002; sleep 3003"] {
        let run = Run::start(&database, &["--lease", "12s", "--grace", "1s"], script);
        run.until_alive(3).await;
        until_renewed(&database).await;
        run.until_alive(3).await;
        signal(run.tool.id(), "STOP");
        let next = Run::start(&database, &["--wait", "1h"], "exec sleep 3004");
        next.until_alive(1).await;
        assert_eq!(run.alive(), [0u32; 0], "{script}");
        signal(run.tool.id(), "CONT");
        run.ends(124);
        signal(next.tool.id(), "TERM");
        next.ends(143);
    }
}

/// `sleep` need not be in the caller's PATH, which may have only the folder of an application.
#[tokio::test]
async fn a_command_runs_to_its_end_with_any_path() {
    let database = Database::migrated().await;
    for path in ["/nowhere", "", "bin"] {
        let mut tool = Command::new(tool());
        tool.args(["exec", "--slots", "1", "job", "--", "/bin/sh", "-c", "/bin/sleep 1; echo finished"]);
        let output = tool.env("DATABASE_URL", &database.url).env("PATH", path).output().expect("the tool");
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert_eq!((output.status.code(), output.stdout.as_slice()), (Some(0), &b"finished\n"[..]), "{path}: {stderr}");
    }
}

/// Without `sleep`, no time passes for the guard: it must not end a command.
#[test]
fn a_guard_without_sleep_ends_no_command() {
    let mut command = Command::new("sleep").arg("3001").process_group(0).spawn().expect("sleep");
    let mut guard = Command::new("/bin/sh");
    guard.args(["-c", include_str!("../../src/operate/exec/guard.sh")]).env("PATH", "/nowhere").process_group(0);
    let mut guard = guard.stdin(Stdio::piped()).stderr(Stdio::null()).spawn().expect("a shell");
    let mut input = guard.stdin.take().expect("its input");
    let _ = writeln!(input, "{} 100\n1.0", command.id()); // It fails if the guard has ended.
    drop(input);
    let ended = (guard.wait().expect("the end of the guard"), command.try_wait().expect("a status"));
    let _ = command.kill();
    let _ = command.wait();
    assert!(ended.0.success() && ended.1.is_none(), "{ended:?}");
}

/// As with `nohup`, and in the background of a script.
#[tokio::test]
async fn signals_that_are_ignored_at_the_start_stay_ignored() {
    let database = Database::migrated().await;
    for (name, number) in [("HUP", 1), ("INT", 2)] {
        let mut shell = Command::new("sh");
        shell.args(["-c", &format!("trap '' {name}; exec \"$@\""), "-"]).arg(tool());
        // The command does not get what the tool ignores. If it is sent to the command, it ignores it, too.
        let script = format!("kill -{name} $PPID $$; sleep 0.3; echo finished");
        shell.args(["exec", "--slots", "1", "job", "--", "sh", "-c", &script]).env("DATABASE_URL", &database.url);
        let output = shell.output().expect("the tool");
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert_eq!((output.status.code(), output.stdout.as_slice()), (Some(0), &b"finished\n"[..]), "{name}: {stderr}");
        // Others are not ignored.
        let mut shell = Command::new("env");
        shell.args(["--default-signal", "sh", "-c", "trap '' USR1; exec \"$@\"", "-"]).arg(tool());
        shell.args(["exec", "--slots", "1", "job", "--", "sh", "-c", &format!("kill -{name} $PPID; exec sleep 3001")]);
        let output = shell.env("DATABASE_URL", &database.url).output().expect("the tool");
        assert_eq!(output.status.code(), Some(128 + number), "{name}");
    }
}

/// A stopped process handles SIGTERM only when it is continued.
#[tokio::test]
async fn a_stopped_process_of_a_command_ends_with_it() {
    let database = Database::migrated().await;
    let run = Run::start(&database, &["--grace", "1h"], "sleep 3001 & kill -STOP $!; exit 4");
    run.ends(4);
}

/// A child that the command starts after it got SIGTERM has not got it.
#[tokio::test]
async fn a_process_that_is_started_after_sigterm_ends_with_the_command() {
    let database = Database::migrated().await;
    let (_dir, path) = files(&[]);
    let ready = path("ready");
    let script = format!("trap 'sleep 3001 & exit 5' TERM; : > {ready}; while :; do sleep 0.05; done");
    let run = Run::start(&database, &["--grace", "1h"], &script);
    until(|| fs::exists(&ready).unwrap_or(false), || "not started".to_owned()).await;
    signal(run.tool.id(), "TERM");
    run.ends(5);
    let run = Run::start(&database, &["--grace", "1h"], "trap 'sleep 0.3; exit 5' TERM; sleep 3000 & wait");
    run.until_alive(2).await;
    signal(run.tool.id(), "TERM");
    run.ends(5);
}

/// A shell that handles SIGTERM loses one that arrives while it starts a program.
#[tokio::test]
async fn what_is_left_of_a_command_is_asked_twice_to_end() {
    let database = Database::migrated().await;
    let script = "(trap 'trap - TERM' TERM; while :; do sleep 0.05; done) & exit 4";
    Run::start(&database, &["--grace", "1h"], script).ends(4);
}

#[tokio::test]
async fn a_slot_is_held_until_the_last_process_of_the_command_has_ended() {
    let database = Database::migrated().await;
    let (_dir, path) = files(&[("work", "")]);
    let work = path("work");
    let script = format!("(trap '' TERM HUP; while [ -e {work} ]; do sleep 0.05; done) & exit 0");
    let run = Run::start(&database, &["--grace", "1h"], &script);
    until_sql(&database.pool, HELD).await;
    let second = Command::new(tool())
        .args(["exec", "--slots", "1", "job", "k", "--", "true"])
        .env("DATABASE_URL", &database.url)
        .output()
        .expect("the tool");
    assert_eq!(second.status.code(), Some(125), "{}", String::from_utf8_lossy(&second.stderr));
    // With a moment for a tool that would give the slot back at once.
    tokio::time::sleep(Duration::from_millis(500)).await;
    assert!(!run.alive().is_empty() && !is_free(&database).await);
    fs::remove_file(&work).expect("remove");
    run.ends(0);
    assert!(is_free(&database).await);
}

#[tokio::test]
async fn a_signal_while_the_slot_is_taken_leaves_no_slot() {
    let database = Database::migrated().await;
    let mut lock = database.pool.begin().await.expect("a transaction");
    sqlx::query("LOCK TABLE rate_limit.rate_limits").execute(&mut *lock).await.expect("the lock");
    let run = Run::start(&database, &["--lease", "1h"], "sleep 3001");
    until_sql(&database.pool, BLOCKED).await;
    signal(run.tool.id(), "TERM");
    tokio::time::sleep(Duration::from_millis(200)).await;
    lock.rollback().await.expect("unlock");
    run.ends(143);
    until_sql(&database.pool, "SELECT NOT EXISTS (SELECT FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid() AND state = 'active')").await;
    assert!(is_free(&database).await, "the lease is left");
}

/// Each signal that a user, a timer, a limit or the machine ends processes with.
#[tokio::test]
async fn no_signal_leaves_a_slot_or_a_process() {
    let of_terminals_and_users = [("HUP", 1), ("INT", 2), ("QUIT", 3), ("USR1", 10), ("USR2", 12), ("TERM", 15)];
    let of_the_machine =
        [("ABRT", 6), ("ALRM", 14), ("XCPU", 24), ("VTALRM", 26), ("PROF", 27), ("IO", 29), ("PWR", 30), ("SYS", 31)];
    let database = Database::migrated().await;
    for (name, number) in of_terminals_and_users.into_iter().chain(of_the_machine) {
        let run = Run::start(&database, &["--lease", "1h"], "exec sleep 3001");
        run.until_alive(1).await;
        signal(run.tool.id(), name);
        run.ends(128 + number);
        assert!(is_free(&database).await, "{name}");
    }
}

#[tokio::test]
async fn a_signal_at_any_moment_leaves_no_slot() {
    let database = Database::migrated().await;
    let began = Instant::now();
    Run::start(&database, &["--lease", "1h"], "true").ends(0);
    let whole = began.elapsed();
    for moment in 0..40 {
        let mut run = Run::start(&database, &["--lease", "1h"], "sleep 3001");
        tokio::time::sleep(whole.mul_f64(f64::from(moment) / 30.0)).await;
        signal(run.tool.id(), "TERM");
        // A signal ends a tool that does not handle signals yet.
        let ended = run.tool.wait().expect("its end");
        assert!(matches!(ended.code(), Some(143) | None), "{ended}");
        assert_eq!(run.alive(), Vec::<u32>::new());
        assert!(is_free(&database).await, "after {moment}/30 of {whole:?}");
    }
}

#[tokio::test]
async fn exit_codes_of_the_tool_can_be_set() {
    let database = Database::migrated().await;
    let run = |options: &[&str], rest: &[&str]| {
        let args = [&["exec"], options, &["job", "k", "--"], rest].concat();
        crate::binary::run(Some(&database.url), &args, "")
    };
    let slots =
        ["--slots", "1", "--exit-code", "not-started=100", "--exit-code", "invalid=101", "--exit-code", "no-slot=0"];
    run(&slots, &["/nonexistent"]).refuses(100, &["cannot start /nonexistent"]);
    run(&slots, &["sh", "-c", "exit 126"]).says(126, "");
    run(&[&slots[..], &["--count", "2"]].concat(), &["true"]).refuses(101, &["the count 2"]);
    let held = Run::start(&database, &[], "sleep 3001");
    until_sql(&database.pool, HELD).await;
    run(&slots, &["true"]).refuses(0, &["no slot of \"job\" for \"k\" is free"]);
    signal(held.tool.id(), "TERM");
    held.ends(143);
    for wrong in ["no-slot", "no-slot=256", "other=1"] {
        let refused = run(&["--slots", "1", "--exit-code", wrong], &["true"]);
        assert_eq!(refused.code, Some(2));
        assert!(refused.stderr.contains(&format!("'{wrong}'")), "{}", refused.stderr);
    }
    let url = "postgres://127.0.0.1:1/none";
    let args = ["exec", "--slots", "1", "--exit-code", "failed=102", "job", "--", "true"];
    crate::binary::run(Some(url), &args, "").refuses(102, &["cannot connect"]);
}
