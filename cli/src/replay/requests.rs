use std::sync::Arc;

use crate::error::CliError;
use crate::plot::{Panel, PlotArgs};
use crate::replay::apply::decide_all;
use crate::replay::merge::in_time_order;
use crate::replay::pictured::Pictured;
use crate::replay::recording::Recording;
use crate::replay::sandbox::Sandbox;
use crate::replay::{LogField, Timed};
use crate::text::grouped;
use pg_limiter::{Limit, Limits};

/// A balance for this panel, or the call of a line.
type Purpose = Option<usize>;

/// Applies each limit alone to the requests of an access log of at most `most` lines, and returns a panel for each.
pub(crate) async fn panels_of_log(
    log: &[u8],
    key: LogField,
    named: &[(Arc<str>, Limit)],
    most: usize,
    sandbox: &mut Sandbox,
) -> Result<Vec<Panel>, CliError> {
    let mut limits = Limits::new();
    for (name, limit) in named {
        limits = limits.define(name, *limit).map_err(CliError::usage)?;
    }
    let names: Vec<String> = named.iter().map(|(name, _)| name.to_string()).collect();
    let recording = Recording::access_log(log, "the access log", &names, key)?;
    if recording.len() == 0 {
        return Err(CliError::usage("the access log has no lines"));
    }
    if recording.len() > most {
        return Err(CliError::usage(format!("the access log has more than {} lines", grouped(most as u64))));
    }
    let mut pictured = Pictured::new(&recording, &limits, &PlotArgs::default(), None)?;
    let order = recording.in_time_order();
    for pass in 0..recording.passes() {
        let questions = pictured.questions(pass, recording.passes());
        let calls = in_time_order(
            questions.into_iter().map(|question| question.tagged(Some)),
            recording.calls(pass, &order).map(|call| call.tagged(|_| None)),
        );
        decide_all(calls, &limits, sandbox, |timed: Timed<Purpose>, decision| match timed.tag {
            Some(panel) => pictured.answered(panel, timed.at, &decision),
            None => pictured.add(&timed, &decision),
        })
        .await?;
    }
    Ok(pictured.into_panels())
}
