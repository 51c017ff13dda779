//! `top`: what `--once` prints, and the real program in a real terminal.

use std::fs;
use std::io::{Read, Write};
use std::process::{Child, ChildStdout, Command, Stdio};

use pg_limiter::migrate::{Migrator, migrate};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

use crate::binary::{files, run, tool};
use crate::doctor::Role;
use crate::support::Database;

const LIMITS: &str = "[limits.api]\nkind = \"token_bucket\"\nrate = 1\nperiod = \"36525d\"\ncapacity = 10\n";

async fn used() -> Database {
    let database = Database::migrated().await;
    let limit = ["limit", "api", "secret-user", "--rate", "1", "--period", "36525d", "--capacity", "10"];
    assert_eq!(run(Some(&database.url), &[&limit[..], &["--count", "4"]].concat(), "").code, Some(0));
    database
}

#[tokio::test(flavor = "multi_thread")]
async fn once_prints_text_or_json() {
    let database = used().await;
    let (_dir, path) = files(&[("limits.toml", LIMITS)]);
    let top = |args: &[&str]| {
        let printed = run(Some(&database.url), &[&["top", "--once", "--interval", "200ms"][..], args].concat(), "");
        assert_eq!((printed.code, printed.stderr.as_str()), (Some(0), ""), "{}", printed.stdout);
        printed.stdout
    };
    let text = top(&["--limits", &path("limits.toml")]);
    for part in ["1 row", "LEAST LEFT", "60 %", "api: token_bucket", "secret-user", "6 of 10", "no jobs"] {
        assert!(text.contains(part), "no {part} in {text}");
    }
    let stored = top(&[]);
    assert!(stored.contains("6 stored") && !stored.contains("of 10"), "{stored}");
    assert!(top(&["--limit", "other"]).contains("no limits in use"));
    assert!(top(&["--key", "nobody"]).contains("no busy or empty keys"));
    let of_key = top(&["--key", "secret"]);
    assert!(of_key.contains("secret-user") && of_key.contains("the figures of limits are of all keys"), "{of_key}");
    let others = top(&["--limit", "other", "--limits", &path("limits.toml")]);
    assert!(!others.contains("not in use"), "{others}");
    let json = top(&["--json", "--hide-keys", "--limits", &path("limits.toml")]);
    let object: Value = serde_json::from_str(&json).expect("JSON");
    let key = &object["limits"][0]["emptiest"][0];
    // A little has been refilled.
    let balance = key["balance"].as_f64().expect("a balance");
    assert!((6.0..6.1).contains(&balance) && key["capacity"] == 10, "{json}");
    assert!(key["key"].as_str().expect("a key").len() == 12 && !json.contains("secret-user"), "{json}");
    assert!(!top(&["--hide-keys"]).contains("secret-user"));

    let json_alone = run(Some(&database.url), &["top", "--json"], "");
    assert!(json_alone.code == Some(2) && json_alone.stderr.contains("--once"), "{}", json_alone.stderr);
    run(Some(&database.url), &["top"], "").refuses(3, &["no terminal", "top --once"]);
    run(None, &["top", "--once"], "").refuses(2, &["--database-url"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn missing_grants_are_named_and_the_rest_is_shown() {
    let database = used().await;
    let role = Role::new(&database).await;
    // The two lines of the guide for people with psql.
    role.gets(
        "GRANT USAGE ON SCHEMA rate_limit TO app_role; \
         GRANT SELECT ON rate_limit.buckets, rate_limit.queue_groups, rate_limit.queue_jobs TO app_role",
    )
    .await;
    let top = || run(Some(&role.url), &["top", "--once", "--interval", "200ms"], "");
    let refused = top();
    assert_eq!(refused.code, Some(3));
    for part in ["permission denied", "GRANT SELECT", ".rate_limits", ".jobs", ".groups"] {
        assert!(refused.stderr.contains(part), "no {part} in {}", refused.stderr);
    }
    role.gets("GRANT SELECT ON rate_limit.rate_limits TO app_role").await;
    let part = top();
    assert_eq!(part.code, Some(0), "{}", part.stderr);
    assert!(part.stdout.contains("secret-user") && part.stderr.contains("jobs"), "{}", part.stderr);
    // The grants that the help names are enough.
    let help = run(None, &["top", "--help"], "").stdout.split_whitespace().collect::<Vec<_>>().join(" ");
    let between = |begin, end| {
        let list = help.split(begin).nth(1).and_then(|rest| rest.split(end).next()).expect("a list");
        let names = list.replace(" and ", ", ");
        names.split(", ").map(|name| format!("rate_limit.{name}")).collect::<Vec<_>>().join(", ")
    };
    let tables = between("SELECT on its tables ", ", and for balances");
    let functions = between("EXECUTE on its functions ", ".");
    role.gets(&format!("GRANT SELECT ON {tables} TO app_role; GRANT EXECUTE ON FUNCTION {functions} TO app_role"))
        .await;
    let whole = top();
    assert_eq!((whole.code, &*whole.stderr), (Some(0), ""));
    role.drop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn once_fails_without_the_tables_but_not_without_the_queue() {
    let database = Database::empty().await;
    let top =
        |args: &[&str]| run(Some(&database.url), &[&["top", "--once", "--interval", "200ms"][..], args].concat(), "");
    let fails = |args: &[&str]| top(args).refuses(3, &["lacks"]);
    fails(&[]);
    fails(&["--json"]);
    Migrator::default().without_queue(true).run(&database.pool).await.expect("migrate");
    let printed = top(&[]);
    assert_eq!((printed.code, printed.stderr.as_str()), (Some(0), ""), "{}", printed.stdout);
    fails(&["--schema", "typo"]);
    migrate(&database.pool).await.expect("migrate");
    assert_eq!(top(&[]).code, Some(0));
    database.execute("DROP TABLE rate_limit.rate_limits CASCADE").await;
    fails(&[]);
}

/// The tool in a terminal of 80 columns and 24 lines, which `script` makes.
struct Screen {
    script: Child,
    output: ChildStdout,
    printed: String,
}

impl Screen {
    fn open(database: &Database, term: &str) -> Self {
        let command = format!("stty rows 24 cols 80; export TERM={term}; exec {} top", tool().display());
        let mut script = Command::new("script");
        script.args(["-qec", &command, "/dev/null"]).env("DATABASE_URL", &database.url).env("LC_ALL", "C.UTF-8");
        let mut script = script.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("start script");
        let output = script.stdout.take().expect("its output");
        Self { script, output, printed: String::new() }
    }

    fn read_until(&mut self, text: &str) {
        let mut buffer = [0; 4096];
        while !self.printed.contains(text) {
            let length = self.output.read(&mut buffer).expect("its output");
            assert_ne!(length, 0, "it ended without {text}: {:?}", self.printed);
            self.printed.push_str(&String::from_utf8_lossy(&buffer[..length]));
        }
    }

    fn press(&mut self, keys: &str) {
        let input = self.script.stdin.as_mut().expect("its input");
        input.write_all(keys.as_bytes()).and_then(|()| input.flush()).expect("press");
    }

    /// The process of the tool: the only child of `script`.
    fn tool(&self) -> Pid {
        let id = self.script.id();
        let children = fs::read_to_string(format!("/proc/{id}/task/{id}/children")).expect("the children");
        Pid::from_raw(children.trim().parse().expect("one child")).expect("a process")
    }

    /// Waits for the end, asserts that the terminal is as before, and returns the exit code.
    fn code(mut self) -> Option<i32> {
        self.output.read_to_string(&mut self.printed).expect("the rest");
        let code = self.script.wait().expect("its end").code();
        let last = |on: &str, off: &str| (self.printed.rfind(on), self.printed.rfind(off));
        // The alternate screen is left, and the cursor is shown.
        for (set, reset) in [("\u{1b}[?1049h", "\u{1b}[?1049l"), ("\u{1b}[?25l", "\u{1b}[?25h")] {
            let (set, reset) = last(set, reset);
            assert!(set.is_some() && reset > set, "{:?}", self.printed);
        }
        code
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn keys_and_signals_restore_the_terminal() {
    let database = used().await;
    for term in ["xterm", "screen"] {
        let mut screen = Screen::open(&database, term);
        screen.read_until("secret-user");
        // Only cells that change are printed, so wait for a word in a part that was blank.
        screen.press("?");
        screen.read_until("closes");
        screen.press("q");
        assert_eq!(screen.code(), Some(0));
    }
    let mut screen = Screen::open(&database, "xterm");
    screen.read_until("secret-user");
    screen.press("\u{3}");
    assert_eq!(screen.code(), Some(0));

    let mut screen = Screen::open(&database, "xterm");
    screen.read_until("secret-user");
    kill_process(screen.tool(), Signal::TERM).expect("a signal");
    assert_eq!(screen.code(), Some(143));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_terminal_that_cannot_move_its_cursor_is_refused() {
    let database = used().await;
    let mut screen = Screen::open(&database, "dumb");
    screen.read_until("top --once");
    screen.output.read_to_string(&mut screen.printed).expect("the rest");
    assert_eq!(screen.script.wait().expect("its end").code(), Some(3));
    assert!(!screen.printed.contains("1049"), "{:?}", screen.printed);
}
