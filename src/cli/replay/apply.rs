//! The replay itself.

use indicatif::{ProgressBar, ProgressStyle};

use crate::call::{Op, Resolved};
use crate::cli::error::CliError;
use crate::cli::replay::recording::Recording;
use crate::cli::replay::sandbox::Sandbox;
use crate::sql::Batch;
use crate::{Call, Decision, InvalidCall, Limits};

/// Calls in one statement: enough that the round trip does not count.
const CHUNK: usize = 250;

/// What became of one call.
pub(super) struct Replayed<'a> {
    /// The place of its line.
    pub(super) place: usize,
    pub(super) at: i64,
    pub(super) op: Op,
    pub(super) call: &'a Call,
    pub(super) decision: Result<Decision, InvalidCall>,
}

/// Decides all calls, in the order of time.
pub(super) async fn replay(
    recording: &Recording,
    limits: &Limits,
    sandbox: &mut Sandbox,
    mut each: impl FnMut(Replayed<'_>),
) -> Result<(), CliError> {
    let places = recording.in_time_order();
    let progress = progress(places.len());
    for chunk in places.chunks(CHUNK) {
        let calls: Vec<(Op, Call)> = chunk.iter().map(|place| recording.call(*place)).collect();
        let resolved: Vec<Result<Resolved, InvalidCall>> =
            calls.iter().map(|(op, call)| Resolved::new(*op, call.clone(), limits, None)).collect();
        let mut batch = Batch::new();
        for (place, call) in chunk.iter().zip(&resolved) {
            // What can never be is not sent.
            if let Ok(call) = call {
                batch.add(call, Some(recording.at(*place)));
            }
        }
        let answers = if batch.is_empty() { Vec::new() } else { sandbox.decide(&batch).await? };
        let mut answers = answers.iter();
        for ((place, (op, call)), resolved) in chunk.iter().zip(&calls).zip(resolved) {
            let decision = match resolved {
                Ok(resolved) => match answers.next() {
                    Some(answer) => Ok(answer.decision(&resolved)),
                    None => return Err(CliError::failed("the database answered fewer calls than were asked")),
                },
                Err(error) => Err(error),
            };
            each(Replayed { place: *place, at: recording.at(*place), op: *op, call, decision });
        }
        progress.inc(chunk.len() as u64);
    }
    progress.finish_and_clear();
    Ok(())
}

/// On standard error, and only if that is a terminal.
fn progress(length: usize) -> ProgressBar {
    let bar = ProgressBar::new(length as u64);
    match ProgressStyle::with_template("replaying [{bar:40}] {human_pos}/{human_len} {eta}") {
        Ok(style) => bar.with_style(style.progress_chars("=> ")),
        Err(_) => bar,
    }
}
