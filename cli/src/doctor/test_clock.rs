//! Checks for a test clock: `TestClock` of the library's feature `testing` installs it.

use std::time::Duration;

use sqlx::Row;

use crate::doctor::finding::Finding;
use crate::doctor::session::Session;

const SEQUENCE: &str = "_test_clock";

/// Returns `None` if there is no test clock.
pub(super) async fn check(session: &mut Session) -> Result<Option<Finding>, sqlx::Error> {
    let (schema, sequence) = (session.schema_literal(), session.table(SEQUENCE));
    let installed = format!(
        "SELECT count(*) FROM pg_proc AS p JOIN pg_namespace AS n ON n.oid = p.pronamespace \
         WHERE n.nspname = {schema} AND p.proname = '_clock' AND p.prosrc LIKE '%{SEQUENCE}%'"
    );
    if session.row(&installed).await?.try_get::<i64, _>(0)? == 0 {
        return Ok(None);
    }
    let ahead: i64 = session.row(&format!("SELECT last_value FROM {sequence}")).await?.try_get(0)?;
    Ok(Some(judge(Duration::from_micros(ahead.unsigned_abs()))))
}

fn judge(ahead: Duration) -> Finding {
    let hours = ahead.as_secs_f64() / 3600.0;
    Finding::problem(format!("a test clock is installed, {hours:.1} h ahead of the server's time"))
        .advise("All limits and queues of the schema follow it. Run pg-limiter migrate, which removes it. Buckets that were used")
        .advise("stay ahead of the server's time; reset their keys. Turn the feature `testing` on only in dev-dependencies.")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_advance_is_reported_in_hours() {
        let found = judge(Duration::from_secs(5_400)).found;
        assert_eq!(found, "a test clock is installed, 1.5 h ahead of the server's time");
    }
}
