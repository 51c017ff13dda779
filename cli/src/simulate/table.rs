//! Prints the simulated limits: as a table, or as JSON with the bars of the picture.

use std::time::Duration;

use serde_json::json;

use crate::json::{line, milliseconds};
use crate::length::period_micros;
use crate::plot::{Bar, Panel};
use crate::simulate::simulate::Simulated;
use crate::text::{aligned, describe, grouped, percent, tokens, wait};

pub(super) fn table(traffic: &str, simulated: &[Simulated], retry: bool) -> Vec<String> {
    let reserved = simulated.iter().any(|one| one.outcome.reserved > 0);
    let slots = simulated.iter().any(Simulated::has_slots);
    let headings = [
        ("LIMIT", true),
        ("OFFERED", true),
        ("ADMITTED", true),
        ("RESERVED", reserved),
        ("DENIED", true),
        ("% ADMITTED", true),
        ("STILL WAITING", retry),
        ("LONGEST WAIT", true),
        ("MOST IN A PERIOD", !simulated.iter().all(Simulated::has_slots)),
        ("MOST AT ONCE", slots),
        ("AVERAGE AT ONCE", slots),
        ("LOST LEASES", slots),
    ];
    let kept = |cells: Vec<String>| -> Vec<String> {
        cells.into_iter().zip(headings).filter(|(_, (_, there))| *there).map(|(cell, _)| cell).collect()
    };
    let row = |one: &Simulated| {
        let Simulated { name, limit, outcome, length } = one;
        // A limit has either a period or slots.
        let of_slots = |text: String| if one.has_slots() { text } else { "-".to_owned() };
        let of_period = |text: String| if one.has_slots() { "-".to_owned() } else { text };
        kept(vec![
            describe(name, limit),
            grouped(outcome.offered),
            grouped(outcome.admitted),
            grouped(outcome.reserved),
            grouped(outcome.denied),
            percent(outcome.admitted, outcome.offered),
            grouped(outcome.waiting()),
            wait(outcome.longest_wait),
            of_period(tokens(outcome.most_in_a_period(period_micros(limit)))),
            of_slots(tokens(outcome.most_held)),
            of_slots(format!("{:.2}", outcome.average_held(*length))),
            of_slots(grouped(outcome.lost)),
        ])
    };
    let mut cells = vec![kept(headings.map(|(heading, _)| heading.to_owned()).to_vec())];
    cells.extend(simulated.iter().map(row));
    let calls = simulated.first().map_or(0, |one| one.outcome.calls);
    let mut lines = vec![format!("{traffic}: {} calls", grouped(calls)), String::new()];
    lines.extend(aligned(&cells, &[0]));
    lines
}

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
