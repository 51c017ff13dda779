//! Checks the settings of the server: durability, connection limits, timeouts and locks, and whether transactions can write.

use crate::doctor::report::Finding;
use crate::doctor::session::{Session, Settings};

const NEARLY_ALL: f64 = 0.8;
const TIMEOUTS: [&str; 4] =
    ["statement_timeout", "lock_timeout", "idle_in_transaction_session_timeout", "transaction_timeout"];
/// Milliseconds. A shorter timeout ends calls that only wait for a row lock.
const SHORT: i64 = 1000;
const USUAL_PREDICATE_LOCKS: i64 = 64;
const USUAL_DEADLOCK_TIMEOUT: i64 = 1000;

/// Checks the tightest of three bounds on connections.
pub(super) async fn connections(session: &mut Session, settings: &Settings) -> Result<Finding, sqlx::Error> {
    let sql = "SELECT (SELECT coalesce(sum(numbackends), 0)::bigint FROM pg_stat_database), \
               (SELECT d.datconnlimit::bigint FROM pg_database AS d WHERE d.datname = current_database()), \
               (SELECT coalesce(s.numbackends, 0)::bigint FROM pg_stat_database AS s WHERE s.datname = current_database()), \
               (SELECT r.rolconnlimit::bigint FROM pg_roles AS r WHERE r.rolname = session_user), \
               (SELECT count(*) FROM pg_stat_activity AS a WHERE a.usename = session_user)";
    let (of_server, database, of_database, role, of_role) = session.row(sql).await?;
    let reserved = settings.number("superuser_reserved_connections").unwrap_or_default();
    let server = settings.number("max_connections").map_or(-1, |most| most - reserved);
    let bounds: [(&str, i64, i64); 3] = [
        ("of the server", server, of_server),
        ("of the database", database, of_database),
        ("of the role", role, of_role),
    ];
    Ok(judge(bounds))
}

/// Each bound: its name, the most connections (negative: unbounded), and the connections in use.
fn judge(bounds: [(&str, i64, i64); 3]) -> Finding {
    let share = |most: i64, used: i64| used as f64 / most.max(1) as f64;
    let bounded = bounds.into_iter().filter(|(_, most, _)| *most >= 0);
    let tightest =
        bounded.max_by(|(_, most, used), (_, other, others)| share(*most, *used).total_cmp(&share(*other, *others)));
    let Some((what, most, used)) = tightest else {
        return Finding::ok("unbounded");
    };
    let found = format!("{used} of the {most} connections {what} are in use");
    if share(most, used) < NEARLY_ALL {
        return Finding::ok(found);
    }
    Finding::warning(found)
        .advise("A limiter opens up to two connections per lane, in addition to your pool. Use fewer (lanes: 1, smaller pools,")
        .advise("Connections::Pool), or raise the bound.")
}

pub(super) fn timeouts(settings: &Settings) -> Finding {
    let set: Vec<&str> = TIMEOUTS
        .into_iter()
        .filter(|name| settings.number(name).is_some_and(|milliseconds| milliseconds > 0))
        .collect();
    let shown = set.iter().map(|name| settings.shown(name)).collect::<Vec<_>>().join(", ");
    let found = if shown.is_empty() { "none is set".to_owned() } else { format!("{shown} (in ms)") };
    let short: Vec<&str> =
        set.into_iter().filter(|name| settings.number(name).is_some_and(|milliseconds| milliseconds < SHORT)).collect();
    if !short.is_empty() {
        let short = short.join(", ");
        return Finding::warning(found)
            .advise(format!("{short}: less than a second ends transactions that only wait for a row lock. Raise it:"))
            .advise("LimiterConfig::retry bounds the limiter's own statements, whatever statement_timeout is.");
    }
    if settings.number("idle_in_transaction_session_timeout") == Some(0) {
        return Finding::note(found)
            .advise("A client that hangs in a transaction keeps the rows locked that it took tokens from. To end such transactions:")
            .advise("ALTER ROLE app_role SET idle_in_transaction_session_timeout = '1min';");
    }
    Finding::ok(found)
}

pub(super) fn locks(settings: &Settings) -> Finding {
    let shown = ["max_pred_locks_per_transaction", "deadlock_timeout"].map(|name| settings.shown(name));
    let mut finding = Finding::ok(shown.join(", "));
    if settings.number("max_pred_locks_per_transaction").is_some_and(|most| most < USUAL_PREDICATE_LOCKS) {
        finding = finding.and(
            Finding::warning("few predicate locks")
                .advise(
                    "SERIALIZABLE transactions run out of them, or lock whole pages and conflict unnecessarily. Set",
                )
                .advise(format!(
                    "max_pred_locks_per_transaction = {USUAL_PREDICATE_LOCKS} or more in postgresql.conf."
                )),
        );
    }
    if settings.number("deadlock_timeout").is_some_and(|milliseconds| milliseconds < USUAL_DEADLOCK_TIMEOUT / 10) {
        finding = finding.and(
            Finding::note("transactions that wait for a row check for deadlocks very early")
                .advise("The check is expensive, and a wait for a hot row is not a deadlock: 1s is usual."),
        );
    }
    finding
}

pub(super) fn durability(settings: &Settings, yugabyte: bool) -> Finding {
    if yugabyte {
        return Finding::ok("YugabyteDB commits to most replicas of a tablet, whatever these settings are");
    }
    let shown = |name| settings.shown(name);
    let mut finding = Finding::ok(["synchronous_commit", "fsync", "full_page_writes"].map(shown).join(", "));
    if settings.get("synchronous_commit") == Some("off") {
        finding = finding.and(
            Finding::warning("decisions are returned before they are on disk")
                .advise("After a crash of the server, tokens taken in the last moments are available again. If you want this, set")
                .advise("LimiterConfig::durability to Durability::Relaxed, and set synchronous_commit to on for everything else:")
                .advise("ALTER ROLE app_role SET synchronous_commit = on; -- or ALTER DATABASE, or postgresql.conf"),
        );
    }
    if settings.get("fsync") == Some("off") {
        finding = finding.and(
            Finding::problem("a crash of the machine may destroy the database")
                .advise("Set fsync = on in postgresql.conf, unless this is a test."),
        );
    }
    if settings.get("full_page_writes") == Some("off") {
        finding =
            finding
                .and(Finding::problem("pages may be torn by a crash").advise(
                    "Set full_page_writes = on in postgresql.conf, unless the file system never tears a page.",
                ));
    }
    finding
}

pub(super) async fn writable(session: &mut Session, settings: &Settings) -> Result<Finding, sqlx::Error> {
    let (standby,) = session.row("SELECT pg_is_in_recovery()").await?;
    if standby {
        return Ok(Finding::problem("this is a standby: it cannot take tokens").advise(
            "Use the URL of the primary. With a list of hosts or a load balancer, select the server that accepts writes.",
        ));
    }
    if settings.get("default_transaction_read_only") == Some("on") {
        let found = format!("transactions are read-only: {}", settings.shown("default_transaction_read_only"));
        return Ok(Finding::problem(found).advise(
            "ALTER ROLE app_role RESET default_transaction_read_only; -- or ALTER DATABASE, or postgresql.conf",
        ));
    }
    Ok(Finding::ok("a primary, and transactions may write"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::doctor::report::State::{Ok, Warning};

    #[test]
    fn the_bound_with_the_fewest_free_connections_is_reported() {
        let finding = judge([("of the server", 100, 50), ("of the database", -1, 50), ("of the role", 10, 8)]);
        assert_eq!(
            (finding.state, finding.found.as_str()),
            (Warning, "8 of the 10 connections of the role are in use")
        );
        let finding = judge([("of the server", 100, 79), ("of the database", -1, 50), ("of the role", -1, 8)]);
        assert_eq!((finding.state, finding.found.as_str()), (Ok, "79 of the 100 connections of the server are in use"));
        assert_eq!(judge([("a", -1, 1), ("b", 0, 1), ("c", -1, 1)]).state, Warning);
    }
}
