//! Checks the database's clock, which is the only one that limits use.

use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use sqlx::Row;

use crate::doctor::finding::Finding;
use crate::doctor::session::Session;

const READINGS: usize = 5;
const TOO_FAR: f64 = 1.0;

/// One reading of both clocks, in seconds since the Unix epoch, and the time that it took.
struct Reading {
    theirs: f64,
    ours: f64,
    round_trip: Duration,
}

impl Reading {
    /// How far the database's clock is ahead, if both directions took the same time.
    fn difference(&self) -> f64 {
        self.theirs - self.ours - self.round_trip.as_secs_f64() / 2.0
    }
}

pub(super) async fn check(session: &mut Session) -> Result<Finding, sqlx::Error> {
    let mut readings = Vec::with_capacity(READINGS);
    for _ in 0..READINGS {
        let ours = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs_f64();
        let begun = Instant::now();
        let row = session.row("SELECT date_part('epoch', clock_timestamp())").await?;
        readings.push(Reading { theirs: row.try_get(0)?, ours, round_trip: begun.elapsed() });
    }
    Ok(judge(&readings))
}

fn judge(readings: &[Reading]) -> Finding {
    if readings.windows(2).any(|pair| pair[1].theirs <= pair[0].theirs) {
        return Finding::problem("the database's clock does not advance")
            .advise("Check the clock of its machine: while it stands still or runs backwards, no tokens refill.");
    }
    let quickest = readings.iter().min_by_key(|reading| reading.round_trip);
    let Some(quickest) = quickest else {
        return Finding::note("not checked");
    };
    let difference = quickest.difference();
    let doubt = quickest.round_trip.as_secs_f64() / 2.0;
    let way = if difference < 0.0 { "behind" } else { "ahead of" };
    let found =
        format!("the database's clock is {:.3} s {way} this machine's (to within {doubt:.3} s)", difference.abs());
    if difference.abs() - doubt <= TOO_FAR {
        return Finding::ok(found);
    }
    Finding::warning(found)
        .advise("Only the database's clock counts, and waits are returned as durations, so limits are still exact. But check")
        .advise("which clock is wrong: the `start` of windows and the `run_at` of jobs refer to the database's clock.")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::doctor::finding::State;

    fn reading(theirs: f64, ours: f64, round_trip: u64) -> Reading {
        Reading { theirs, ours, round_trip: Duration::from_millis(round_trip) }
    }

    #[test]
    fn half_the_round_trip_is_subtracted() {
        let found = judge(&[reading(100.25, 100.0, 500), reading(101.1, 101.0, 100)]);
        assert_eq!(found.state, State::Ok);
        assert_eq!(found.found, "the database's clock is 0.050 s ahead of this machine's (to within 0.050 s)");
        // Half of a slow round trip may be the whole difference.
        assert_eq!(judge(&[reading(98.5, 100.0, 4000)]).state, State::Warning);
        assert_eq!(judge(&[reading(101.5, 100.0, 4000)]).state, State::Ok);
    }
}
