//! Checks how full the server's queue of notifications is. From one half on, the queue of jobs sends none.

use std::time::Duration;

use crate::doctor::finding::Finding;
use crate::doctor::session::Session;
use crate::text::{age, one_line};

/// The share from which no notification is sent. It is that of `_ring`.
const HALF: f64 = 0.5;

/// The oldest transaction of the server: if its session listens, no notification after its start is removed.
struct Oldest {
    pid: i32,
    database: String,
    seconds: f64,
}

pub(super) async fn check(session: &mut Session) -> Result<Finding, sqlx::Error> {
    let sql = "SELECT pg_notification_queue_usage(), o.pid, o.datname, o.seconds \
               FROM (SELECT) AS one LEFT JOIN ( \
                 SELECT a.pid, coalesce(a.datname::text, '') AS datname, \
                   date_part('epoch', clock_timestamp() - a.xact_start) AS seconds \
                 FROM pg_stat_activity AS a \
                 WHERE a.xact_start IS NOT NULL AND a.pid <> pg_backend_pid() AND a.backend_type = 'client backend' \
                 ORDER BY a.xact_start LIMIT 1) AS o ON true";
    let (usage, pid, database, seconds) = session.row::<(f64, Option<i32>, Option<String>, Option<f64>)>(sql).await?;
    let oldest = pid.zip(database).zip(seconds);
    Ok(judge(usage, oldest.map(|((pid, database), seconds)| Oldest { pid, database, seconds })))
}

fn judge(usage: f64, oldest: Option<Oldest>) -> Finding {
    let found = format!("the queue of notifications is {:.0} % full", (usage * 100.0).floor());
    if usage < HALF {
        return Finding::ok(found);
    }
    let finding = Finding::warning(format!("{found}: no worker is woken, and jobs wait until workers poll"))
        .advise("A session that LISTENs holds it up with a long transaction. When it is full, every commit with a NOTIFY fails.");
    match oldest {
        Some(Oldest { pid, database, seconds }) => finding.advise(format!(
            "The oldest transaction is {} old: pid {pid}, database {}. End it: SELECT pg_terminate_backend({pid});",
            age(Duration::from_secs_f64(seconds.max(0.0))),
            one_line(&database)
        )),
        None => {
            finding.advise("Look for it in pg_stat_activity as a role with pg_read_all_stats: ORDER BY xact_start.")
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::doctor::finding::State::{Ok, Warning};

    #[test]
    fn a_queue_that_is_half_full_is_reported_with_the_oldest_transaction() {
        let oldest = || Some(Oldest { pid: 77, database: "shop".to_owned(), seconds: 7200.0 });
        assert_eq!([judge(0.0, None).state, judge(0.499, oldest()).state], [Ok, Ok]);
        let finding = judge(0.5, oldest());
        assert_eq!((finding.state, judge(1.0, None).state), (Warning, Warning));
        let text = format!("{finding:?}");
        assert!(text.contains("50 % full") && text.contains("pid 77, database shop") && text.contains("2h"), "{text}");
    }
}
