//! Checks for long transactions. They prevent the removal of dead rows, and lock the rows that they took tokens from.

use std::time::Duration;

use crate::doctor::report::Finding;
use crate::doctor::session::Session;
use crate::doctor::table::{count, length};
use crate::text::{age, one_line};
use pg_limiter::Length;

/// If this role cannot see when a transaction started: it is old if this many transactions began after it.
const MANY_SINCE: i64 = 1_000_000;
const MOST_SHOWN: usize = 3;
/// The age from which a transaction is old if old row versions pile up.
const LONGEST_IF_THEY_PILE_UP: Duration = Duration::from_secs(30);

struct Open {
    /// The description of the transaction; `end` is the SQL that ends it.
    who: String,
    end: String,
    seconds: Option<f64>,
    since: i64,
    idle: bool,
    holds_rows: bool,
}

/// A row: the kind, the name, the role, the application, the state, the age in seconds and in transactions, and `holds_rows`.
type Found = (String, String, Option<String>, String, String, Option<f64>, i64, bool);

pub(super) async fn check(session: &mut Session, longest: Duration, piles_up: bool) -> Result<Finding, sqlx::Error> {
    let sql = format!(
        "SELECT 'session', a.pid::text, a.usename::text, coalesce(a.application_name, ''), coalesce(a.state, ''), \
           date_part('epoch', clock_timestamp() - a.xact_start), \
           coalesce(age(coalesce(a.backend_xmin, a.backend_xid)), 0)::bigint, \
           EXISTS (SELECT FROM pg_locks AS l JOIN pg_class AS c ON c.oid = l.relation \
             JOIN pg_namespace AS n ON n.oid = c.relnamespace \
             WHERE l.pid = a.pid AND l.database = a.datid AND l.mode = 'RowExclusiveLock' \
               AND n.nspname = {} AND c.relname = 'rate_limits') \
         FROM pg_stat_activity AS a \
         WHERE a.datname = current_database() AND a.pid <> pg_backend_pid() \
           AND coalesce(a.backend_type, '') <> 'autovacuum worker' \
           AND (a.xact_start IS NOT NULL OR a.backend_xmin IS NOT NULL OR a.backend_xid IS NOT NULL) \
         UNION ALL \
         SELECT 'prepared', p.gid, p.owner::text, '', '', date_part('epoch', clock_timestamp() - p.prepared), \
           age(p.transaction)::bigint, false \
         FROM pg_prepared_xacts AS p WHERE p.database = current_database() \
         UNION ALL \
         SELECT 'slot', s.slot_name::text, '', '', '', NULL, age(s.xmin)::bigint, false \
         FROM pg_replication_slots AS s WHERE s.xmin IS NOT NULL \
         ORDER BY 6 DESC NULLS LAST, 7 DESC",
        session.schema_literal()
    );
    let mut open = Vec::new();
    for row in session.rows(&sql).await? {
        let (kind, name, role, application, state, seconds, since, holds_rows): Found = row;
        let role = role.unwrap_or_default();
        let (who, end) = match kind.as_str() {
            "session" => {
                let application = if application.is_empty() { String::new() } else { format!(", {application}") };
                let state = if state.is_empty() { String::new() } else { format!(", {state}") };
                (format!("pid {name} ({role}{application}{state})"), format!("SELECT pg_terminate_backend({name});"))
            }
            "prepared" => {
                let gid = name.replace('\'', "''");
                (format!("the prepared transaction '{name}' of {role}"), format!("ROLLBACK PREPARED '{gid}';"))
            }
            _ => (
                format!("the replication slot '{name}'"),
                format!("Let its standby catch up, or drop the slot: SELECT pg_drop_replication_slot('{name}');"),
            ),
        };
        open.push(Open {
            who: one_line(&who),
            end: one_line(&end),
            seconds,
            since,
            idle: state.starts_with("idle in transaction"),
            holds_rows,
        });
    }
    Ok(judge(&open, longest, piles_up))
}

fn judge(open: &[Open], longest: Duration, piles_up: bool) -> Finding {
    let longest = if piles_up { longest.min(LONGEST_IF_THEY_PILE_UP) } else { longest };
    let is_old = |one: &&Open| match one.seconds {
        Some(seconds) => length(seconds) >= longest,
        None => one.since >= MANY_SINCE,
    };
    let old: Vec<&Open> = open.iter().filter(is_old).collect();
    if old.is_empty() {
        let hidden = open.iter().filter(|one| one.seconds.is_none()).count();
        let hidden =
            if hidden == 0 { String::new() } else { format!("; the age of {hidden} is hidden from this role") };
        return Finding::ok(format!("none has been open for {} or longer{hidden}", Length::from(longest)));
    }
    let described = |one: &&Open| {
        let time = match one.seconds {
            Some(seconds) => format!("for {}", age(length(seconds))),
            None => format!("for {} transactions", count(one.since)),
        };
        let rows = if one.holds_rows { ", with rows of rate_limits locked" } else { "" };
        format!("{} {time}{rows}", one.who)
    };
    let more = if old.len() > MOST_SHOWN { format!(", and {} more", old.len() - MOST_SHOWN) } else { String::new() };
    let names = old.iter().take(MOST_SHOWN).map(described).collect::<Vec<_>>().join("; ");
    let mut finding = Finding::warning(format!("open: {names}{more}"))
        .advise(if piles_up {
            "While it is open, old row versions of hot keys pile up, and decisions on these keys take longer and longer. \
             End it:"
        } else {
            "While it is open, no dead row can be removed, and every decision gets slower. End it:"
        })
        .advise(old[0].end.clone());
    if old.iter().any(|one| one.idle) {
        finding = finding
            .advise("ALTER ROLE app_role SET idle_in_transaction_session_timeout = '1min'; -- ends idle transactions");
    }
    finding
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::doctor::report::State::{Ok, Warning};

    fn open(seconds: Option<f64>, since: i64) -> Open {
        let (who, end) = ("pid 7".to_owned(), "end".to_owned());
        Open { who, end, seconds, since, idle: false, holds_rows: false }
    }

    #[test]
    fn without_a_start_time_the_age_is_judged_by_later_transactions() {
        let judge = |one| judge(&[one], Duration::from_secs(60), false);
        assert_eq!([judge(open(Some(59.9), 5_000_000)).state, judge(open(Some(60.0), 0)).state], [Ok, Warning]);
        assert_eq!([judge(open(None, 999_999)).state, judge(open(None, 1_000_000)).state], [Ok, Warning]);
        assert_eq!(
            judge(open(None, 3)).found,
            "none has been open for 1m or longer; the age of 1 is hidden from this role"
        );
        assert_eq!(judge(open(Some(3600.0), 3)).found, "open: pid 7 for 1h");
    }

    #[test]
    fn while_versions_pile_up_30_seconds_are_too_long() {
        let state = |seconds, longest| judge(&[open(Some(seconds), 0)], Duration::from_secs(longest), true).state;
        assert_eq!([state(29.9, 300), state(30.0, 300)], [Ok, Warning]);
        assert_eq!([state(9.9, 10), state(10.0, 10)], [Ok, Warning]);
    }
}
