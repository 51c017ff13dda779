//! Checks the settings of the server: durability, connection limits, timeouts and locks, and whether transactions can write.

use std::collections::HashMap;

use crate::operate::doctor::{Finding, PLAIN, Session, ask};
use crate::text::many;

const NEARLY_ALL: f64 = 0.8;
const TIMEOUTS: [&str; 4] =
    ["statement_timeout", "lock_timeout", "idle_in_transaction_session_timeout", "transaction_timeout"];
/// Milliseconds. A shorter timeout ends calls that only wait for a row lock.
const SHORT: i64 = 1000;
const USUAL_PREDICATE_LOCKS: i64 = 64;

/// Values and their sources, as a new session of this role gets them, without changes that this session made.
pub(super) struct Settings(HashMap<String, (String, String)>);

impl Settings {
    pub(super) async fn read(session: &mut Session) -> sqlx::Result<Self> {
        let sql = "SELECT name, coalesce(reset_val, ''), source FROM pg_settings";
        let rows: Vec<(String, String, String)> = ask(&mut session.connection, PLAIN, sql).await?;
        Ok(Self(rows.into_iter().map(|(name, value, source)| (name, (value, source))).collect()))
    }

    pub(super) fn get(&self, name: &str) -> Option<&str> {
        self.0.get(name).map(|(value, _)| value.as_str())
    }

    fn number(&self, name: &str) -> Option<i64> {
        self.get(name)?.parse().ok()
    }

    pub(super) fn shown(&self, name: &str) -> String {
        let Some((value, source)) = self.0.get(name) else { return format!("{name} is unknown") };
        let source = match source.as_str() {
            "user" => " (of the role)",
            "database" => " (of the database)",
            "database user" => " (of the role in this database)",
            _ => "",
        };
        format!("{name}={value}{source}")
    }

    pub(super) fn timeouts(&self) -> Finding {
        let shorter = |name: &&str, most| self.number(name).is_some_and(|value| (1..most).contains(&value));
        let short = TIMEOUTS.into_iter().filter(|name| shorter(name, SHORT)).collect::<Vec<_>>().join(", ");
        let set = TIMEOUTS.iter().filter(|name| shorter(name, i64::MAX)).map(|name| self.shown(name));
        let set = set.collect::<Vec<_>>().join(", ");
        let found = if set.is_empty() { "none is set".to_owned() } else { format!("{set} (in ms)") };
        match self.get("idle_in_transaction_session_timeout") {
            _ if !short.is_empty() => Finding::warning(found)
                .advise(format!("{short}: less than a second ends transactions that only wait for a row lock. Raise it:"))
                .advise("LimiterConfig::retry bounds the limiter's own statements, whatever statement_timeout is."),
            Some("0") => Finding::note(found)
                .advise("A client that hangs in a transaction keeps the rows locked that it took tokens from. To end such transactions:")
                .advise("ALTER ROLE app_role SET idle_in_transaction_session_timeout = '1min';"),
            _ => Finding::ok(found),
        }
    }

    pub(super) fn locks(&self) -> Finding {
        let shown = ["max_pred_locks_per_transaction", "deadlock_timeout"].map(|name| self.shown(name));
        let is_below = |name, least| self.number(name).is_some_and(|value| value < least);
        Finding::ok(shown.join(", "))
            .and(is_below("max_pred_locks_per_transaction", USUAL_PREDICATE_LOCKS).then(|| {
                Finding::warning("few predicate locks")
                    .advise("SERIALIZABLE transactions run out of them, or lock whole pages and conflict unnecessarily. Set")
                    .advise(format!("max_pred_locks_per_transaction = {USUAL_PREDICATE_LOCKS} or more in postgresql.conf."))
            }))
            .and(is_below("deadlock_timeout", 100).then(|| {
                Finding::note("transactions that wait for a row check for deadlocks very early")
                    .advise("The check is expensive, and a wait for a hot row is not a deadlock: 1s is usual.")
            }))
    }

    pub(super) fn durability(&self, is_yugabyte: bool) -> Finding {
        if is_yugabyte {
            return Finding::ok("YugabyteDB commits to most replicas of a tablet, whatever these settings are");
        }
        let shown = ["synchronous_commit", "fsync", "full_page_writes"].map(|name| self.shown(name));
        let is_off = |name| self.get(name) == Some("off");
        Finding::ok(shown.join(", "))
            .and(is_off("synchronous_commit").then(|| {
                Finding::warning("decisions are returned before they are on disk")
                    .advise("After a crash of the server, tokens taken in the last moments are available again. If you want this, set")
                    .advise("LimiterConfig::durability to Durability::Relaxed, and set synchronous_commit to on for everything else:")
                    .advise("ALTER ROLE app_role SET synchronous_commit = on; -- or ALTER DATABASE, or postgresql.conf")
            }))
            .and(is_off("fsync").then(|| {
                Finding::problem("a crash of the machine may destroy the database")
                    .advise("Set fsync = on in postgresql.conf, unless this is a test.")
            }))
            .and(is_off("full_page_writes").then(|| {
                Finding::problem("pages may be torn by a crash")
                    .advise("Set full_page_writes = on in postgresql.conf, unless the file system never tears a page.")
            }))
    }

    /// Without a synchronous standby, COMMIT waits. To a role without `pg_monitor`, states and waits are NULL.
    pub(super) async fn standbys(&self, session: &mut Session) -> sqlx::Result<Option<Finding>> {
        const NAMES: &str = "synchronous_standby_names";
        if self.get(NAMES).is_none_or(str::is_empty) {
            return Ok(None);
        }
        let sql = "SELECT (SELECT count(*) FROM pg_stat_replication \
                     WHERE coalesce(sync_state, 'sync') IN ('sync', 'quorum')), \
                     (SELECT count(*) FROM pg_stat_activity \
                      WHERE wait_event = 'SyncRep' AND query_start < clock_timestamp() - interval '5 seconds'), \
                     pg_is_in_recovery() OR current_setting('synchronous_commit') IN ('off', 'local')";
        let (standbys, waiting, never_waits) = session.row::<(i64, i64, bool)>(sql).await?;
        let counts = format!("synchronous standbys: {standbys}; sessions over 5 s in COMMIT: {waiting}");
        let finding = Finding::problem(format!("{}; {counts}", self.shown(NAMES)))
            .advise("COMMIT waits for the standbys: start them, and check their delay. Without them:")
            .advise("ALTER SYSTEM SET synchronous_standby_names = ''; SELECT pg_reload_conf();");
        Ok((!never_waits).then(|| finding.ok_if(standbys > 0 && waiting == 0)))
    }

    pub(super) async fn writable(&self, session: &mut Session) -> sqlx::Result<Finding> {
        let (standby,) = session.row("SELECT pg_is_in_recovery()").await?;
        const READ_ONLY: &str = "default_transaction_read_only";
        Ok(match self.get(READ_ONLY) {
            _ if standby => Finding::problem("this is a standby: it cannot take tokens")
                .advise("Use the URL of the primary. It has one host: with a load balancer, select the server that accepts writes."),
            Some("on") => Finding::problem(format!("transactions are read-only: {}", self.shown(READ_ONLY)))
                .advise("ALTER ROLE app_role RESET default_transaction_read_only; -- or ALTER DATABASE, or postgresql.conf"),
            _ => Finding::ok("a primary, and transactions may write"),
        })
    }
}

pub(super) async fn connections(session: &mut Session) -> sqlx::Result<Finding> {
    let sql = "SELECT 'of the server', \
                 coalesce(current_setting('max_connections', true)::bigint \
                   - current_setting('superuser_reserved_connections', true)::bigint, -1), \
                 (SELECT coalesce(sum(numbackends), 0)::bigint FROM pg_stat_database) \
               UNION ALL SELECT 'of the database', d.datconnlimit::bigint, coalesce(s.numbackends, 0)::bigint \
               FROM pg_database AS d JOIN pg_stat_database AS s ON s.datid = d.oid WHERE d.datname = current_database() \
               UNION ALL SELECT 'of the role', r.rolconnlimit::bigint, \
                 (SELECT count(*) FROM pg_stat_activity AS a WHERE a.usename = session_user) \
               FROM pg_roles AS r WHERE r.rolname = session_user";
    Ok(judge(session.rows::<(String, i64, i64)>(sql).await?))
}

/// Each bound: its name, the most connections (negative: unbounded), and the connections in use.
fn judge(bounds: impl IntoIterator<Item = (impl std::fmt::Display, i64, i64)>) -> Finding {
    let bounded = bounds.into_iter().filter(|(_, most, _)| *most >= 0);
    let shares = bounded.map(|(what, most, used)| (used as f64 / most.max(1) as f64, what, most, used));
    let tightest = shares.max_by(|one, other| one.0.total_cmp(&other.0));
    let Some((share, what, most, used)) = tightest else { return Finding::ok("unbounded") };
    let are = if most == 1 { "is" } else { "are" };
    Finding::warning(format!("{used} of the {} {what} {are} in use", many(most.unsigned_abs(), "connection")))
        .advise("A limiter opens up to two connections per lane, in addition to your pool. Use fewer (lanes: 1, smaller pools,")
        .advise("Connections::Pool), or raise the bound.")
        .ok_if(share < NEARLY_ALL)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::operate::doctor::State::{Ok, Warning};

    #[test]
    fn the_bound_with_the_fewest_free_connections_is_reported() {
        let found = "8 of the 10 connections of the role are in use";
        let finding = judge([("of the server", 100, 50), ("of the database", -1, 50), ("of the role", 10, 8)]);
        assert_eq!((finding.state, finding.found.as_str()), (Warning, found));
        let finding = judge([("of the server", 100, 79), ("of the database", -1, 50), ("of the role", -1, 8)]);
        assert_eq!((finding.state, finding.found.as_str()), (Ok, "79 of the 100 connections of the server are in use"));
        assert_eq!(judge([("a", -1, 1), ("b", 0, 1), ("c", -1, 1)]).state, Warning);
    }
}
