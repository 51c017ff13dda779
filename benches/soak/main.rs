//! Tests the limiter and its server under faults: `cargo bench --bench soak --features embedded -- --time 10m`.
//!
//! `-- --help` describes the run, its options and its exit codes.

#[path = "mod.rs"]
mod soak;

use std::env::{self, VarError};
use std::future::pending;
use std::io::{self, Write};
use std::process::ExitCode;

use tokio::sync::oneshot;

use crate::soak::Failure;
use crate::soak::options::{HELP, Options};
use crate::soak::report::{Event, Summary};

const INVALID_OPTIONS: u8 = 2;
const FAILED: u8 = 3;

#[tokio::main]
async fn main() -> ExitCode {
    let options = match Options::read(env::args().skip(1)) {
        Ok(Some(options)) => options,
        Ok(None) => {
            println!("{}", HELP);
            return ExitCode::SUCCESS;
        }
        Err(error) => return failed(INVALID_OPTIONS, &error),
    };
    match run(options).await {
        Ok(summary) => ExitCode::from(summary.exit_code()),
        Err(error) => failed(FAILED, &error),
    }
}

fn failed(code: u8, error: &Failure) -> ExitCode {
    eprintln!("{error}");
    ExitCode::from(code)
}

/// The first Ctrl-C or SIGTERM stops the run, which then removes its rows. The second one ends it at once.
async fn run(mut options: Options) -> Result<Summary, Failure> {
    options.database_url = match env::var("DATABASE_URL") {
        Err(VarError::NotPresent) => None,
        url => Some(url?).filter(|url| !url.trim().is_empty()),
    };
    let (first, interrupted) = oneshot::channel();
    let interrupted_twice = async {
        interrupt().await;
        let _ = first.send(()); // If the run no longer waits for it, the run is about to end.
        interrupt().await;
    };
    let json = options.json;
    let interrupted = async {
        let _ = interrupted.await; // The sender is not dropped before the run.
    };
    tokio::select! {
        biased; // So that the signals are listened to before the first output.
        () = interrupted_twice => Err("interrupted twice: rows of limits and a table whose names begin with \
             \"pg-limiter soak\" may remain; remove the rows with `pg-limiter reset`, and drop the table".into()),
        ran = soak::soak::run(&options, interrupted, move |event| print(&event, json)) => ran,
    }
}

/// Prints a line. If the output is closed, the run continues, because it still has to remove its rows.
fn print(event: &Event<'_>, json: bool) {
    let line = if json {
        serde_json::to_string(event).unwrap_or_else(|error| format!("cannot be printed as JSON: {error}"))
    } else {
        event.to_string()
    };
    let _ = writeln!(io::stdout().lock(), "{line}");
}

/// Waits for Ctrl-C or SIGTERM.
async fn interrupt() {
    tokio::select! {
        pressed = tokio::signal::ctrl_c() => if pressed.is_err() { pending::<()>().await },
        () = terminate() => {}
    }
}

#[cfg(unix)]
async fn terminate() {
    match tokio::signal::unix::signal(tokio::signal::unix::SignalKind::terminate()) {
        Ok(mut signal) => drop(signal.recv().await),
        Err(_) => pending().await,
    }
}

#[cfg(not(unix))]
async fn terminate() {
    pending().await
}
