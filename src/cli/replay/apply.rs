//! Calls at times that are told, decided by the database.

use indicatif::{ProgressBar, ProgressStyle};

use crate::call::{Op, Resolved};
use crate::cli::error::CliError;
use crate::cli::replay::sandbox::Sandbox;
use crate::sql::Batch;
use crate::{Call, Decision, InvalidCall, Limits};

/// Calls in one statement: enough that the round trip does not count.
pub(in crate::cli) const CHUNK: usize = 250;

/// A call, and what the clock says when it is made.
#[derive(Clone, Debug)]
pub(in crate::cli) struct Timed<T> {
    /// In microseconds since the Unix epoch.
    pub(in crate::cli) at: i64,
    pub(in crate::cli) op: Op,
    pub(in crate::cli) call: Call,
    /// What whoever asks knows it by.
    pub(in crate::cli) tag: T,
}

impl<T> Timed<T> {
    /// The same, known by something made of what it was known by.
    pub(in crate::cli) fn tagged<U>(self, tag: impl FnOnce(T) -> U) -> Timed<U> {
        Timed { at: self.at, op: self.op, call: self.call, tag: tag(self.tag) }
    }
}

/// Decides all calls, in the order in which they are given, which is that of time.
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
            // What can never be is not sent.
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
                    None => return Err(CliError::failed("the database answered fewer calls than were asked")),
                },
                Err(error) => Err(error),
            };
            each(timed, decision);
        }
    }
}

/// On standard error, and only if that is a terminal.
pub(in crate::cli) fn progress(what: &str, length: usize) -> ProgressBar {
    let bar = ProgressBar::new(length as u64);
    match ProgressStyle::with_template("{msg} [{bar:40}] {human_pos}/{human_len} {eta}") {
        Ok(style) => bar.with_style(style.progress_chars("=> ")).with_message(what.to_owned()),
        Err(_) => bar,
    }
}
