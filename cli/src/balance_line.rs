//! The line of a balance in pictures.

use pg_limiter::Kind;

/// A line through these balances. The balance of a fixed or calendar window, and the free slots, stay constant between them.
pub(crate) fn balance_line(points: Vec<(i64, f64)>, kind: Kind) -> Vec<(i64, f64)> {
    if !matches!(kind, Kind::FixedWindow | Kind::CalendarWindow | Kind::Concurrency) {
        return points;
    }
    let mut steps: Vec<(i64, f64)> = Vec::with_capacity(2 * points.len());
    for (at, value) in points {
        steps.extend(steps.last().map(|(_, before)| (at, *before)));
        steps.push((at, value));
    }
    steps
}
