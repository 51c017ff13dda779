//! Lets the database decide calls at given times.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use crate::error::CliError;
use crate::replay::sandbox::Sandbox;
use pg_limiter::{Call, CallAt, Decision, InvalidCall, Limits, Op};

/// Calls per statement: enough to make the round trip negligible.
pub(crate) const CHUNK: usize = 250;

/// A call, and the time at which it is made.
#[derive(Clone, Debug)]
pub(crate) struct Timed<T> {
    /// In microseconds since the Unix epoch.
    pub(crate) at: i64,
    pub(crate) op: Op,
    pub(crate) call: Call,
    /// Identifies the call to the caller of [`decide_all`].
    pub(crate) tag: T,
}

impl<T> Timed<T> {
    /// The same call with another tag, made from this one.
    pub(crate) fn tagged<U>(self, tag: impl FnOnce(T) -> U) -> Timed<U> {
        Timed { at: self.at, op: self.op, call: self.call, tag: tag(self.tag) }
    }
}

/// Decides the next calls, in the given order, which must be the order of time. Returns whether there were any.
pub(crate) async fn decide_some<T>(
    calls: &mut impl Iterator<Item = Timed<T>>,
    limits: &Limits,
    sandbox: &mut Sandbox,
    mut each: impl FnMut(Timed<T>, Result<Decision, InvalidCall>),
) -> Result<bool, CliError> {
    let chunk: Vec<Timed<T>> = calls.take(CHUNK).collect();
    if chunk.is_empty() {
        return Ok(false);
    }
    let asked: Vec<CallAt> =
        chunk.iter().map(|timed| CallAt::new(moment(timed.at), timed.op, timed.call.clone())).collect();
    for (timed, decision) in chunk.into_iter().zip(sandbox.decide(limits, &asked).await?) {
        each(timed, decision);
    }
    Ok(true)
}

/// Decides all calls, like [`decide_some`].
pub(crate) async fn decide_all<T>(
    calls: impl IntoIterator<Item = Timed<T>>,
    limits: &Limits,
    sandbox: &mut Sandbox,
    mut each: impl FnMut(Timed<T>, Result<Decision, InvalidCall>),
) -> Result<(), CliError> {
    let mut calls = calls.into_iter();
    while decide_some(&mut calls, limits, sandbox, &mut each).await? {}
    Ok(())
}

/// The time that is this many microseconds after the Unix epoch.
pub(crate) fn moment(micros: i64) -> SystemTime {
    let since = Duration::from_micros(micros.unsigned_abs());
    if micros < 0 { UNIX_EPOCH - since } else { UNIX_EPOCH + since }
}
