//! Calls at times that are told, decided by the database.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use indicatif::{ProgressBar, ProgressStyle};

use crate::error::CliError;
use crate::replay::sandbox::Sandbox;
use pg_limiter::{Call, CallAt, Decision, InvalidCall, Limits, Op};

/// Calls in one statement: enough that the round trip does not count.
pub(crate) const CHUNK: usize = 250;

/// A call, and what the clock says when it is made.
#[derive(Clone, Debug)]
pub(crate) struct Timed<T> {
    /// In microseconds since the Unix epoch.
    pub(crate) at: i64,
    pub(crate) op: Op,
    pub(crate) call: Call,
    /// What whoever asks knows it by.
    pub(crate) tag: T,
}

impl<T> Timed<T> {
    /// The same, known by something made of what it was known by.
    pub(crate) fn tagged<U>(self, tag: impl FnOnce(T) -> U) -> Timed<U> {
        Timed { at: self.at, op: self.op, call: self.call, tag: tag(self.tag) }
    }
}

/// Decides all calls, in the order in which they are given, which is that of time.
pub(crate) async fn decide_all<T>(
    calls: impl IntoIterator<Item = Timed<T>>,
    limits: &Limits,
    sandbox: &mut Sandbox,
    mut each: impl FnMut(Timed<T>, Result<Decision, InvalidCall>),
) -> Result<(), CliError> {
    let mut calls = calls.into_iter();
    loop {
        let chunk: Vec<Timed<T>> = calls.by_ref().take(CHUNK).collect();
        if chunk.is_empty() {
            return Ok(());
        }
        let asked: Vec<CallAt> =
            chunk.iter().map(|timed| CallAt::new(moment(timed.at), timed.op, timed.call.clone())).collect();
        for (timed, decision) in chunk.into_iter().zip(sandbox.decide(limits, &asked).await?) {
            each(timed, decision);
        }
    }
}

/// Of microseconds since the Unix epoch.
pub(crate) fn moment(micros: i64) -> SystemTime {
    let since = Duration::from_micros(micros.unsigned_abs());
    if micros < 0 { UNIX_EPOCH - since } else { UNIX_EPOCH + since }
}

/// On standard error, and only if that is a terminal.
pub(crate) fn progress(what: &str, length: usize) -> ProgressBar {
    let bar = ProgressBar::new(length as u64);
    match ProgressStyle::with_template("{msg} [{bar:40}] {human_pos}/{human_len} {eta}") {
        Ok(style) => bar.with_style(style.progress_chars("=> ")).with_message(what.to_owned()),
        Err(_) => bar,
    }
}
