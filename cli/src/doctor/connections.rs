//! Bounds of the server that callers meet.

use sqlx::Row;

use crate::doctor::finding::Finding;
use crate::doctor::session::Session;
use crate::doctor::settings::Settings;

const NEARLY_ALL: f64 = 0.8;
const TIMEOUTS: [&str; 4] =
    ["statement_timeout", "lock_timeout", "idle_in_transaction_session_timeout", "transaction_timeout"];
/// Milliseconds: one that is shorter ends calls that only wait for their turn.
const SHORT: i64 = 1000;
const USUAL_PREDICATE_LOCKS: i64 = 64;
const USUAL_DEADLOCK_TIMEOUT: i64 = 1000;

/// The tightest of three bounds.
pub(super) async fn connections(session: &mut Session, settings: &Settings) -> Result<Finding, sqlx::Error> {
    let sql = "SELECT (SELECT coalesce(sum(numbackends), 0)::bigint FROM pg_stat_database), \
               (SELECT d.datconnlimit::bigint FROM pg_database AS d WHERE d.datname = current_database()), \
               (SELECT coalesce(s.numbackends, 0)::bigint FROM pg_stat_database AS s WHERE s.datname = current_database()), \
               (SELECT r.rolconnlimit::bigint FROM pg_roles AS r WHERE r.rolname = session_user), \
               (SELECT count(*) FROM pg_stat_activity AS a WHERE a.usename = session_user)";
    let row = session.row(sql).await?;
    let reserved = settings.number("superuser_reserved_connections").unwrap_or_default();
    let server = settings.number("max_connections").map_or(-1, |most| most - reserved);
    let bounds: [(&str, i64, i64); 3] = [
        ("of the server", server, row.try_get(0)?),
        ("of the database", row.try_get(1)?, row.try_get(2)?),
        ("of the role", row.try_get(3)?, row.try_get(4)?),
    ];
    Ok(judge(bounds))
}

/// What is bounded, the bound (negative: none), and how many there are.
fn judge(bounds: [(&str, i64, i64); 3]) -> Finding {
    let share = |most: i64, used: i64| used as f64 / most.max(1) as f64;
    let bounded = bounds.into_iter().filter(|(_, most, _)| *most >= 0);
    let tightest =
        bounded.max_by(|(_, most, used), (_, other, others)| share(*most, *used).total_cmp(&share(*other, *others)));
    let Some((what, most, used)) = tightest else {
        return Finding::ok("not bounded");
    };
    let found = format!("{used} of the {most} {what} are taken");
    if share(most, used) < NEARLY_ALL {
        return Finding::ok(found);
    }
    Finding::warning(found)
        .advise("A limiter takes up to two connections for each of its lanes, besides your pool. Use fewer (lanes: 1, smaller")
        .advise("pools, Connections::Pool), or raise the bound.")
}

pub(super) fn timeouts(settings: &Settings) -> Finding {
    let set: Vec<&str> = TIMEOUTS
        .into_iter()
        .filter(|name| settings.number(name).is_some_and(|milliseconds| milliseconds > 0))
        .collect();
    let told = set.iter().map(|name| settings.told(name)).collect::<Vec<_>>().join(", ");
    let found = if told.is_empty() { "none is set".to_owned() } else { format!("{told} (in ms)") };
    let short: Vec<&str> =
        set.into_iter().filter(|name| settings.number(name).is_some_and(|milliseconds| milliseconds < SHORT)).collect();
    if !short.is_empty() {
        let short = short.join(", ");
        return Finding::warning(found)
            .advise(format!(
                "{short}: less than a second ends transactions that only wait for their turn at a row. Raise it;"
            ))
            .advise("the limiter bounds its own statements by LimiterConfig::retry, whatever statement_timeout is.");
    }
    if settings.number("idle_in_transaction_session_timeout") == Some(0) {
        return Finding::note(found)
            .advise("A client that hangs in a transaction keeps the rows that it took tokens from locked. To end it:")
            .advise("ALTER ROLE app_role SET idle_in_transaction_session_timeout = '1min';");
    }
    Finding::ok(found)
}

pub(super) fn locks(settings: &Settings) -> Finding {
    let told = ["max_pred_locks_per_transaction", "deadlock_timeout"].map(|name| settings.told(name));
    let mut finding = Finding::ok(told.join(", "));
    if settings.number("max_pred_locks_per_transaction").is_some_and(|most| most < USUAL_PREDICATE_LOCKS) {
        finding = finding.and(
            Finding::warning("few predicate locks")
                .advise("SERIALIZABLE transactions run out of them, or lock whole pages and conflict without need: set")
                .advise(format!(
                    "max_pred_locks_per_transaction = {USUAL_PREDICATE_LOCKS} or more in postgresql.conf."
                )),
        );
    }
    if settings.number("deadlock_timeout").is_some_and(|milliseconds| milliseconds < USUAL_DEADLOCK_TIMEOUT / 10) {
        finding = finding.and(
            Finding::note("who waits for a row looks for deadlocks very soon")
                .advise("Looking is expensive, and waits at a hot row are no deadlocks: 1s is usual."),
        );
    }
    finding
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::doctor::finding::State::{Ok, Warning};

    #[test]
    fn the_tightest_bound_counts() {
        let finding = judge([("of the server", 100, 50), ("of the database", -1, 50), ("of the role", 10, 8)]);
        assert_eq!((finding.state, finding.found.as_str()), (Warning, "8 of the 10 of the role are taken"));
        let finding = judge([("of the server", 100, 79), ("of the database", -1, 50), ("of the role", -1, 8)]);
        assert_eq!((finding.state, finding.found.as_str()), (Ok, "79 of the 100 of the server are taken"));
        assert_eq!(judge([("a", -1, 1), ("b", 0, 1), ("c", -1, 1)]).state, Warning);
    }
}
