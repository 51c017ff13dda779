//! Formats a simulated limit as JSON, with the bars of its picture.

use std::time::Duration;

use serde_json::json;

use crate::json::{line, milliseconds};
use crate::length::period_micros;
use crate::plot::{Bar, Panel};
use crate::simulate::simulate::Simulated;

pub(super) fn object(simulated: &Simulated, panel: &Panel) -> String {
    let Simulated { name, limit, outcome, length } = simulated;
    let bars = |tokens: fn(&Bar) -> f64| panel.series.bars.iter().map(tokens).collect::<Vec<_>>();
    let of_micros = |micros: i64| milliseconds(Duration::from_micros(micros.unsigned_abs()));
    let balances = panel.series.balances().into_iter().map(|(at, value)| [of_micros(at), value]);
    let of_slots = |number: f64| simulated.has_slots().then_some(number);
    line(&json!({
        "limit": **name,
        "kind": limit.kind().as_str(),
        "calls": outcome.calls,
        "offered": outcome.offered,
        "admitted": outcome.admitted,
        "reserved": outcome.reserved,
        "denied": outcome.denied,
        "longest_wait_ms": milliseconds(outcome.longest_wait),
        "most_in_a_period": (!simulated.has_slots()).then(|| outcome.most_in_a_period(period_micros(limit))),
        "most_at_once": of_slots(outcome.most_held),
        "average_at_once": of_slots(outcome.average_held(*length)),
        "lost_leases": simulated.has_slots().then_some(outcome.lost),
        "bar_ms": of_micros(panel.series.bins.width),
        "bars_offered": bars(Bar::offered),
        "bars_admitted": bars(|bar| bar.admitted),
        "bars_reserved": bars(|bar| bar.reserved),
        "bars_denied": bars(|bar| bar.denied),
        "balance": balances.collect::<Vec<_>>(),
    }))
}
