//! Lets the database decide calls at given times.

use indicatif::{ProgressBar, ProgressStyle};

use crate::call::{Op, Resolved};
use crate::cli::error::CliError;
use crate::cli::replay::sandbox::Sandbox;
use crate::sql::Batch;
use crate::{Call, Decision, InvalidCall, Limits};

/// Calls per statement: enough to make the round trip negligible.
pub(in crate::cli) const CHUNK: usize = 250;

/// A call, and the time at which it is made.
#[derive(Clone, Debug)]
pub(in crate::cli) struct Timed<T> {
    /// In microseconds since the Unix epoch.
    pub(in crate::cli) at: i64,
    pub(in crate::cli) op: Op,
    pub(in crate::cli) call: Call,
    /// Identifies the call to the caller of [`decide_all`].
    pub(in crate::cli) tag: T,
}

impl<T> Timed<T> {
    /// The same call with another tag, made from this one.
    pub(in crate::cli) fn tagged<U>(self, tag: impl FnOnce(T) -> U) -> Timed<U> {
        Timed { at: self.at, op: self.op, call: self.call, tag: tag(self.tag) }
    }
}

/// Decides all calls, in the given order, which must be the order of time.
pub(in crate::cli) async fn decide_all<T>(
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
        let resolved: Vec<Result<Resolved, InvalidCall>> =
            chunk.iter().map(|timed| Resolved::new(timed.op, timed.call.clone(), limits, None)).collect();
        let mut batch = Batch::new();
        for (timed, call) in chunk.iter().zip(&resolved) {
            // Calls that can never be allowed are not sent.
            if let Ok(call) = call {
                batch.add(call, Some(timed.at));
            }
        }
        let answers = if batch.is_empty() { Vec::new() } else { sandbox.decide(&batch).await? };
        let mut answers = answers.iter();
        for (timed, resolved) in chunk.into_iter().zip(resolved) {
            let decision = match resolved {
                Ok(resolved) => match answers.next() {
                    Some(answer) => Ok(answer.decision(&resolved)),
                    None => return Err(CliError::failed("the database returned fewer decisions than calls")),
                },
                Err(error) => Err(error),
            };
            each(timed, decision);
        }
    }
}

/// A progress bar on standard error. It is drawn only on a terminal.
pub(in crate::cli) fn progress(what: &str, length: usize) -> ProgressBar {
    let bar = ProgressBar::new(length as u64);
    match ProgressStyle::with_template("{msg} [{bar:40}] {human_pos}/{human_len} {eta}") {
        Ok(style) => bar.with_style(style.progress_chars("=> ")).with_message(what.to_owned()),
        Err(_) => bar,
    }
}
