//! Writes to standard output without `println!`, which panics when the reader has closed it, and messages and progress to standard
//! error. Progress is drawn on a terminal only, if the work takes longer than a moment, until the [`Progress`] is dropped.

use std::fmt::Display;
use std::io::{self, IsTerminal, Write};
use std::sync::{LazyLock, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use indicatif::{MultiProgress, ProgressBar, ProgressDrawTarget, ProgressStyle};

use crate::text::{message, one_line, shortened};
use crate::{CliError, Result};

pub(super) fn line(text: impl Display) -> Result<()> {
    lines([text])
}

/// Writes a line, and does nothing if standard output is closed: the exit code of the command stays the same.
pub(super) fn line_if_open(text: impl Display) -> Result<()> {
    lines_if_open([text])
}

/// As [`line_if_open`], for several lines.
pub(super) fn lines_if_open(texts: impl IntoIterator<Item = impl Display>) -> Result<()> {
    match lines(texts) {
        Err(CliError::OutputClosed) => Ok(()),
        written => written,
    }
}

pub(super) fn lines(texts: impl IntoIterator<Item = impl Display>) -> Result<()> {
    let write = || {
        let mut out = io::BufWriter::new(io::stdout().lock());
        texts.into_iter().try_for_each(|text| writeln!(out, "{text}"))?;
        out.flush()
    };
    aside(write).map_err(failure)
}

/// Writes a message for the user to standard error. What it quotes cannot control the terminal.
pub(super) fn note(text: impl Display) {
    // A failure here cannot be reported anywhere.
    let _ = aside(|| writeln!(io::stderr().lock(), "pg-limiter: {}", message(&text.to_string())));
}

/// Whether to colour standard output. `NO_COLOR` turns it off: see no-color.org.
pub(super) fn colours() -> bool {
    io::stdout().is_terminal() && std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty())
}

/// Turns a failure to write to standard output into an error. A closed pipe is [`CliError::OutputClosed`].
pub(super) fn failure(error: io::Error) -> CliError {
    match error.kind() {
        io::ErrorKind::BrokenPipe => CliError::OutputClosed,
        _ => CliError::failed(format!("cannot write the output: {error}")),
    }
}

/// Work that ends sooner shows no progress.
const MOMENT: Duration = Duration::from_millis(500);
const TICK: Duration = Duration::from_millis(120);
const WIDEST: usize = 50;

/// Whether standard error is a terminal that can erase a line.
static IS_DRAWN: LazyLock<bool> =
    LazyLock::new(|| io::stderr().is_terminal() && std::env::var_os("TERM").is_some_and(|term| term != "dumb"));

/// All that is drawn at this moment, on standard error.
static DRAWN: LazyLock<MultiProgress> = LazyLock::new(MultiProgress::new);

pub(super) struct Progress {
    bar: ProgressBar,
    appearance: Option<tokio::task::AbortHandle>,
}

impl Progress {
    /// Work of an unknown length.
    pub(super) fn of(what: impl AsRef<str>) -> Self {
        Self::start(what, ProgressBar::no_length(), "{spinner} {msg} {elapsed}")
    }

    /// Work of an unknown length. Its parts are counted with [`add`](Self::add).
    pub(super) fn counting(what: impl AsRef<str>) -> Self {
        Self::start(what, ProgressBar::no_length(), "{spinner} {msg}: {human_pos}")
    }

    /// Work of so many parts, which are counted with [`add`](Self::add).
    pub(super) fn parts(what: impl AsRef<str>, parts: usize) -> Self {
        Self::start(what, ProgressBar::new(parts as u64), "{msg} [{bar:25}] {human_pos}/{human_len} {eta}")
    }

    /// Reads so many bytes, from the reader of [`wrap_read`](Self::wrap_read).
    pub(super) fn bytes(what: impl AsRef<str>, length: u64) -> Self {
        Self::start(what, ProgressBar::new(length), "{msg} [{bar:25}] {bytes}/{total_bytes} {eta}")
    }

    pub(super) fn hidden() -> Self {
        Self { bar: ProgressBar::hidden(), appearance: None }
    }

    fn start(what: impl AsRef<str>, bar: ProgressBar, template: &str) -> Self {
        bar.set_draw_target(ProgressDrawTarget::hidden());
        if let Ok(style) = ProgressStyle::with_template(template) {
            bar.set_style(style.progress_chars("=> ").tick_chars("|/-\\ "));
        }
        let shown = bar.clone();
        let appear = async move {
            tokio::time::sleep(MOMENT).await;
            let _lock = lock();
            if !shown.is_finished() {
                DRAWN.add(shown.clone());
                shown.enable_steady_tick(TICK);
            }
        };
        let progress = Self { bar, appearance: IS_DRAWN.then(|| tokio::spawn(appear).abort_handle()) };
        progress.now(what);
        progress
    }

    pub(super) fn now(&self, what: impl AsRef<str>) {
        // Names of limits and keys may have control characters, which the terminal would interpret.
        self.bar.set_message(shortened(&one_line(what.as_ref()), WIDEST));
    }

    pub(super) fn wrap_read<R: io::Read>(&self, reader: R) -> impl io::Read + use<R> {
        self.bar.wrap_read(reader)
    }

    pub(super) fn add(&self, parts: usize) {
        self.bar.inc(parts as u64);
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        let Some(appearance) = &self.appearance else { return };
        appearance.abort();
        let _lock = lock();
        self.bar.finish_and_clear();
        DRAWN.remove(&self.bar);
    }
}

/// Writes to the terminal while the progress is out of the way.
pub(super) fn aside<T>(write: impl FnOnce() -> T) -> T {
    if *IS_DRAWN { DRAWN.suspend(write) } else { write() }
}

/// Locks what is drawn, while a bar appears or is removed.
fn lock() -> MutexGuard<'static, ()> {
    static LOCK: Mutex<()> = Mutex::new(());
    LOCK.lock().unwrap_or_else(PoisonError::into_inner)
}
