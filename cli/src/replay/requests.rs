use std::sync::Arc;

use crate::error::CliError;
use crate::lines::{LineArgs, Source};
use crate::plot::{Panel, PlotArgs};
use crate::replay::apply::decide_all;
use crate::replay::faults::Faults;
use crate::replay::merge::in_time_order;
use crate::replay::pictured::Pictured;
use crate::replay::recording::Recording;
use crate::replay::sandbox::Sandbox;
use crate::replay::{LogOptions, Timed};
use crate::text::grouped;
use pg_limiter::{Limit, Limits};

/// A balance for this panel, or the call of a line.
type Purpose = Option<usize>;

/// Applies each limit alone to the requests of an access log of at most `most` lines, and returns a panel for each, and notes on
/// the lines.
pub(crate) async fn panels_of_log(
    log: &[u8],
    options: &LogOptions,
    named: &[(Arc<str>, Limit)],
    most: usize,
    sandbox: &mut Sandbox,
) -> Result<(Vec<Panel>, Vec<String>), CliError> {
    let mut limits = Limits::new();
    for (name, limit) in named {
        limits = limits.define(name, *limit).map_err(CliError::usage)?;
    }
    let applied = named.iter().map(|(name, _)| Arc::clone(name)).collect();
    let source = Source::bytes("the access log", log.to_vec());
    let mut recording = Recording::access_log(source, options, &limits, applied, &LineArgs::default(), true)?;
    if recording.summary.lines == 0 {
        return Err(CliError::usage("the access log has no lines"));
    }
    if recording.summary.lines > most as u64 {
        return Err(CliError::usage(format!("the access log has more than {} lines", grouped(most as u64))));
    }
    let notes = std::mem::take(&mut recording.notes);
    let mut pictured = Pictured::new(&recording, &limits, &PlotArgs::default(), None)?;
    for pass in 0..recording.passes() {
        let faults = Faults::left_out();
        let questions = pictured.questions(pass, recording.passes());
        let calls = in_time_order(
            questions.into_iter().map(|question| question.tagged(Some)),
            recording.pass(pass, &faults)?.map(|call| call.tagged(|_| None)),
        );
        decide_all(calls, &limits, sandbox, |timed: Timed<Purpose>, decision| match timed.tag {
            Some(panel) => pictured.answered(panel, timed.at, &decision),
            None => pictured.add(&timed, &decision),
        })
        .await?;
        faults.take()?;
    }
    Ok((pictured.into_panels(), notes))
}
