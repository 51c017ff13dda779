//! Formats a simulated limit as JSON, with the bars of its picture.

use crate::json::{array, object as fields, string};
use crate::length::period_micros;
use crate::plot::{Bar, Panel};
use crate::simulate::simulate::Simulated;
use crate::text::{milliseconds, plain};

pub(super) fn object(Simulated { name, limit, outcome }: &Simulated, panel: &Panel) -> String {
    let bars = |tokens: fn(&Bar) -> f64| array(panel.series.bars.iter().map(|bar| plain(tokens(bar))));
    let balance = panel
        .series
        .balances()
        .into_iter()
        .map(|(at, value)| array([milliseconds(u128::from(at.unsigned_abs())), plain(value)]));
    fields([
        ("limit", string(name)),
        ("kind", string(limit.kind().as_str())),
        ("calls", outcome.calls.to_string()),
        ("offered", outcome.offered.to_string()),
        ("admitted", outcome.admitted.to_string()),
        ("reserved", outcome.reserved.to_string()),
        ("denied", outcome.denied.to_string()),
        ("longest_wait_ms", milliseconds(outcome.longest_wait.as_micros())),
        ("most_in_a_period", plain(outcome.most_in_a_period(period_micros(limit)))),
        ("bar_ms", milliseconds(u128::from(panel.series.bins.width.unsigned_abs()))),
        ("bars_offered", bars(Bar::offered)),
        ("bars_admitted", bars(|bar| bar.admitted)),
        ("bars_reserved", bars(|bar| bar.reserved)),
        ("bars_denied", bars(|bar| bar.denied)),
        ("balance", array(balance)),
    ])
}
