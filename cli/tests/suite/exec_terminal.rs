//! `exec` in a terminal, from a shell with job control.

use std::io::{Read, Write};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use pg_limiter::sqlx;

use crate::binary::tool;
use crate::support::Database;

const FREE: &str = "SELECT coalesce((SELECT value = 0 FROM rate_limit.rate_limits), true)";
const INTERRUPT: &str = "\u{3}";
const SUSPEND: &str = "\u{1a}";

/// A program in a terminal of its own, which `script` makes.
struct Terminal {
    script: Child,
    keys: ChildStdin,
    screen: Arc<Mutex<String>>,
}

impl Terminal {
    fn new(database: &Database, command: &str) -> Self {
        // A shell without job control lets the processes that it starts in the background ignore SIGINT, and so would the command.
        let mut script = Command::new("env");
        script.args(["--default-signal", "script", "-qec", command, "/dev/null"]);
        script.env("DATABASE_URL", &database.url).env("TERM", "dumb");
        script.env("EXEC", format!("{} exec --slots 1 --lease 1m job k --", tool().display()));
        let mut script = script.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("start script");
        let (keys, mut output) = (script.stdin.take().expect("its input"), script.stdout.take().expect("its output"));
        let screen = Arc::new(Mutex::new(String::new()));
        let copy = Arc::clone(&screen);
        std::thread::spawn(move || {
            let mut buffer = [0; 4096];
            while let Ok(length @ 1..) = output.read(&mut buffer) {
                copy.lock().expect("a lock").push_str(&String::from_utf8_lossy(&buffer[..length]));
            }
        });
        Self { script, keys, screen }
    }

    fn shell(database: &Database) -> Self {
        let mut terminal = Self::new(database, "bash --norc --noprofile -i");
        terminal.types("PS1=\"rea\"\"dy> \"\n");
        terminal.shows("ready> ");
        terminal
    }

    fn types(&mut self, keys: &str) {
        self.keys.write_all(keys.as_bytes()).expect("type");
        self.keys.flush().expect("type");
    }

    /// Waits until the shell has so many stopped processes with these names, a pattern of `grep`.
    fn has_stopped(&mut self, names: &str, count: usize) {
        self.types(&format!("ps -o stat=,comm= | grep -c '^T.* {names}' | sed 's/^/stopped: /'\n"));
        self.shows(&format!("stopped: {count}"));
    }

    /// Waits until the screen shows the text, and clears what was before it.
    fn shows(&self, text: &str) {
        self.shows_without("\0", text);
    }

    /// As `shows`, and asserts that another text is not before it.
    fn shows_without(&self, other: &str, text: &str) {
        let began = Instant::now();
        loop {
            let mut screen = self.screen.lock().expect("a lock");
            if let Some((before, rest)) = screen.split_once(text) {
                assert!(!before.contains(other), "{other:?} in {before:?}");
                *screen = rest.to_owned();
                return;
            }
            assert!(began.elapsed() < Duration::from_secs(120), "no {text:?} in {screen:?}");
            drop(screen);
            std::thread::sleep(Duration::from_millis(10));
        }
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        let _ = self.script.kill();
        let _ = self.script.wait();
    }
}

async fn is_free(database: &Database) -> bool {
    sqlx::query_scalar(FREE).fetch_one(&database.pool).await.expect("an answer")
}

#[tokio::test(flavor = "multi_thread")]
async fn a_command_reads_the_terminal_and_ctrl_c_ends_it() {
    let database = Database::migrated().await;
    let mut terminal = Terminal::shell(&database);
    terminal.types("$EXEC sh -c 'read line; echo st\"\"arted; exec cat'\n\n");
    terminal.shows("started");
    for line in ["first", "second"] {
        terminal.types(&format!("{line}\n"));
        terminal.shows(line); // As it is typed.
        terminal.shows(line);
    }
    assert!(!is_free(&database).await);
    terminal.types(INTERRUPT);
    terminal.shows("ready> ");
    terminal.types("echo \"code $?\"\n");
    terminal.shows("code 130");
    assert!(is_free(&database).await);
}

#[tokio::test(flavor = "multi_thread")]
async fn ctrl_z_stops_the_command_with_the_tool_and_fg_continues_both() {
    let database = Database::migrated().await;
    let mut terminal = Terminal::shell(&database);
    terminal.types("$EXEC sh -c 'read line; echo st\"\"arted; exec cat'\n\n");
    terminal.shows("started");
    // The terminal's echo, and then `cat`, which is now at work in place of the shell.
    terminal.types("once\n");
    terminal.shows("once");
    terminal.shows("once");
    for _ in 0..2 {
        terminal.types(SUSPEND);
        terminal.shows("the slots are not renewed");
        terminal.shows("Stopped");
        terminal.has_stopped("cat", 1);
        terminal.types("fg\n");
        terminal.shows("$EXEC");
        terminal.types("again\n");
        terminal.shows("again");
        terminal.shows("again");
    }
    // In the background, it stops as soon as it reads.
    terminal.types(SUSPEND);
    terminal.shows("Stopped");
    terminal.types("bg; wait %1; echo \"wai\"ted\n");
    terminal.shows("waited");
    assert!(!is_free(&database).await);
    terminal.types("fg\n");
    terminal.shows("$EXEC");
    terminal.types("last\n");
    terminal.shows("last");
    terminal.shows("last");
    terminal.types("\u{4}"); // End of file.
    terminal.shows("ready> ");
    terminal.types("echo \"code $?\"\n");
    terminal.shows("code 0");
    assert!(is_free(&database).await);
}

/// A stopped command has the terminal, and reads no keys: without the tool, its user could not get the shell back.
#[tokio::test(flavor = "multi_thread")]
async fn a_command_that_others_stop_is_a_stopped_job_of_the_shell() {
    let database = Database::migrated().await;
    let mut terminal = Terminal::shell(&database);
    for _ in 0..2 {
        terminal.types("$EXEC sh -c 'read line; kill -STOP $$; echo go\"\"es on'\n\n");
        terminal.shows("the slots are not renewed");
        terminal.shows("Stopped");
        assert!(!is_free(&database).await);
        terminal.types("fg\n");
        terminal.shows("goes on");
        terminal.shows("ready> ");
        assert!(is_free(&database).await);
    }
}

/// The tool is continued after its lease was lost: the command must not go on.
#[tokio::test(flavor = "multi_thread")]
async fn a_command_whose_lease_ended_while_it_was_stopped_does_not_go_on() {
    let database = Database::migrated().await;
    let mut terminal = Terminal::shell(&database);
    terminal.types("$EXEC sh -c 'read line; echo st\"\"arted; exec cat'\n\n");
    terminal.shows("started");
    terminal.types(SUSPEND);
    terminal.shows("Stopped");
    database.execute("SELECT rate_limit.reset('job', 'k')").await; // Ends all leases.
    terminal.types("fg\n");
    terminal.shows("the lease was lost: stopping the command");
    terminal.shows("ready> ");
    terminal.types("echo \"code $?\"\n");
    terminal.shows("code 124");
}

/// The shell of a script has no job control: the tool has to give the terminal back to it.
#[tokio::test(flavor = "multi_thread")]
async fn a_script_has_the_terminal_again_after_the_command() {
    let database = Database::migrated().await;
    let mut terminal = Terminal::new(
        &database,
        "sh -c '$EXEC sh -c \"read a; echo one \\$a\"; read b; echo two $b; $EXEC sh -c \"sleep 3001 & echo three; exit 1\"; read c; echo four $c'",
    );
    for (key, shown) in [("a", "one a"), ("b", "two b")] {
        terminal.types(&format!("{key}\n"));
        terminal.shows(shown);
    }
    terminal.shows("three");
    terminal.types("c\n");
    terminal.shows("four c");
    assert!(is_free(&database).await);
}

/// The rest of a pipeline, such as a pager, may read the terminal.
#[tokio::test(flavor = "multi_thread")]
async fn a_pipeline_keeps_the_terminal_until_the_command_reads_it() {
    let database = Database::migrated().await;
    let mut terminal = Terminal::shell(&database);
    let pager = "sh -c 'read text; echo pag\"\"er; read key < /dev/tty; echo got-$key-$text'";
    terminal.types(&format!("$EXEC sh -c 'sleep 0.3; echo text; exec sleep 3' | {pager}\n"));
    terminal.shows("pager");
    terminal.types("x\n");
    terminal.shows("got-x-text");
    terminal.types("$EXEC sh -c 'read a < /dev/tty; echo as\"\"ked $a' | cat\nx\n");
    terminal.shows("asked x");
    terminal.types("$EXEC sh -c 'echo st\"\"arted; exec sleep 3001' | cat\n");
    terminal.shows("started");
    terminal.types(SUSPEND);
    terminal.shows("the slots are not renewed");
    terminal.shows("Stopped");
    terminal.has_stopped("sleep", 1);
    terminal.types("fg\n");
    terminal.shows("sleep 3001");
    terminal.types(INTERRUPT);
    terminal.shows("ready> ");
    terminal.types("echo \"code $?\"\n");
    terminal.shows("code 130");
    assert!(is_free(&database).await);
}

/// As long as the command runs, the script's own group is in the background. It must get Ctrl-C all the same.
#[tokio::test(flavor = "multi_thread")]
async fn ctrl_c_ends_the_script_around_the_tool() {
    let database = Database::migrated().await;
    let mut terminal = Terminal::shell(&database);
    terminal.types("sh -c 'trap \"echo inter\"rupted INT; $EXEC sh -c \"echo st\\\"\\\"arted; exec sleep 3001\"; echo \"af\"ter'\n");
    terminal.shows("started");
    terminal.types(INTERRUPT);
    terminal.shows("interrupted");
    terminal.shows("after");
    assert!(is_free(&database).await);
}

/// bash goes on after a program that handles Ctrl-C and exits.
#[tokio::test(flavor = "multi_thread")]
async fn ctrl_c_ends_a_script_of_bash_and_a_loop() {
    let database = Database::migrated().await;
    let mut terminal = Terminal::shell(&database);
    let command = "$EXEC sh -c 'echo st\"\"arted; exec sleep 3001'";
    for command in [command.to_owned(), format!("{command} | cat")] {
        terminal.types(&format!("bash -c '{}; echo af\"\"ter'\n", command.replace('\'', "'\\''")));
        terminal.shows("started");
        terminal.types(INTERRUPT);
        terminal.shows_without("after", "ready> ");
        terminal.types("echo \"code $?\"\n");
        terminal.shows("code 130");
        assert!(is_free(&database).await);
    }
    terminal.types(&format!("for i in 1 2; do {command}; echo af\"\"ter; done\n"));
    terminal.shows("started");
    terminal.types(INTERRUPT);
    terminal.shows_without("after", "ready> ");
    assert!(is_free(&database).await);
}

/// The command has the terminal once it has read from it, and gets Ctrl-Z alone.
#[tokio::test(flavor = "multi_thread")]
async fn ctrl_z_stops_a_pipeline_whose_command_has_read_from_the_terminal() {
    let database = Database::migrated().await;
    let mut terminal = Terminal::shell(&database);
    terminal.types("$EXEC sh -c 'while read a; do echo go\"\"t $a; done' | cat\n");
    for _ in 0..2 {
        terminal.types("x\n");
        terminal.shows("got x");
        terminal.types(SUSPEND);
        terminal.shows("Stopped");
        terminal.has_stopped("\\(cat\\|sh\\|pg-limiter\\)$", 3);
        terminal.types("fg\n");
        terminal.shows("$EXEC");
    }
    terminal.types("y\n");
    terminal.shows("got y");
    terminal.types("\u{4}"); // End of file.
    terminal.shows("ready> ");
    assert!(is_free(&database).await);
}
