//! Checks the database's clock, which is the only one that limits use, and whether a test clock replaces it.

use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use crate::doctor::report::Finding;
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

pub(super) async fn difference(session: &mut Session) -> Result<Finding, sqlx::Error> {
    let mut readings = Vec::with_capacity(READINGS);
    for _ in 0..READINGS {
        let ours = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs_f64();
        let begun = Instant::now();
        let (theirs,) = session.row("SELECT date_part('epoch', clock_timestamp())").await?;
        readings.push(Reading { theirs, ours, round_trip: begun.elapsed() });
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

const SEQUENCE: &str = "_test_clock";

/// Checks for a test clock, which `TestClock` of the library's feature `testing` installs. Returns `None` if there is none.
pub(super) async fn test_clock(session: &mut Session) -> Result<Option<Finding>, sqlx::Error> {
    let (schema, sequence) = (session.schema_literal(), session.table(SEQUENCE));
    let installed = format!(
        "SELECT count(*) FROM pg_proc AS p JOIN pg_namespace AS n ON n.oid = p.pronamespace \
         WHERE n.nspname = {schema} AND p.proname = '_clock' AND p.prosrc LIKE '%{SEQUENCE}%'"
    );
    if session.row::<(i64,)>(&installed).await? == (0,) {
        return Ok(None);
    }
    let (ahead,): (i64,) = session.row(&format!("SELECT last_value FROM {sequence}")).await?;
    Ok(Some(judge_test_clock(Duration::from_micros(ahead.unsigned_abs()))))
}

fn judge_test_clock(ahead: Duration) -> Finding {
    let hours = ahead.as_secs_f64() / 3600.0;
    Finding::problem(format!("a test clock is installed, {hours:.1} h ahead of the server's time"))
        .advise("All limits and queues of the schema follow it. Run pg-limiter migrate, which removes it. Buckets that were used")
        .advise("stay ahead of the server's time; reset their keys. Turn the feature `testing` on only in dev-dependencies.")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::doctor::report::State;

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

    #[test]
    fn the_advance_is_reported_in_hours() {
        let found = judge_test_clock(Duration::from_secs(5_400)).found;
        assert_eq!(found, "a test clock is installed, 1.5 h ahead of the server's time");
    }
}
