//! Checks for jobs that are dead, late or abandoned, for the sequence of their ids, and for the queue of notifications.

use std::time::Duration;

use crate::operate::doctor::table::{count, length, micros};
use crate::operate::doctor::{Finding, Session};
use crate::operate::export::CLOCK;
use crate::text::{age, escaped, many, one_line};

const LATE: Duration = Duration::from_secs(60);
/// By default, workers remove ended jobs after a day.
const LONG_ENDED: Duration = Duration::from_secs(2 * 86_400);
const MANY_ENDED: i64 = 10_000;

/// Times in microseconds.
#[derive(Debug, Default)]
struct Jobs {
    all: i64,
    waiting: i64,
    /// For how long the oldest of them has been waiting.
    oldest: Option<i64>,
    running: i64,
    dead: i64,
    /// How overdue the most overdue job is that has not started.
    late: Option<i64>,
    /// How long ago the oldest expired lease ended. No worker has taken over its job.
    lapsed: Option<i64>,
    long_ended: i64,
    blocked: i64,
    /// A limit that the workers do not know.
    unknown: Option<String>,
    /// The paused queues, and how many groups are paused.
    paused: Option<String>,
    paused_groups: i64,
}

pub(super) async fn check(session: &mut Session) -> sqlx::Result<Finding> {
    let long_ended = LONG_ENDED.as_micros();
    let sql = format!(
        "SELECT count(*), count(*) FILTER (WHERE state IN ('scheduled', 'available')), \
           count(*) FILTER (WHERE state = 'running'), count(*) FILTER (WHERE state = 'dead'), \
           max(clock.now - run_at) FILTER (WHERE state IN ('scheduled', 'available') AND NOT awaits_turn), \
           max(clock.now - lease_until) FILTER (WHERE state = 'running'), \
           count(*) FILTER (WHERE state IN ('done', 'cancelled') AND finished_at < clock.now - {long_ended}), \
           max(clock.now - enqueued_at) FILTER (WHERE state IN ('scheduled', 'available')), \
           count(*) FILTER (WHERE blocked_by IS NOT NULL), \
           min(regexp_replace(blocked_by, '/slots$', '')) \
         FROM {} CROSS JOIN (SELECT {CLOCK} AS now) AS clock",
        session.table("jobs")
    );
    let (all, waiting, running, dead, late, lapsed, long_ended, oldest, blocked, unknown) = session.row(&sql).await?;
    let paused = format!(
        "SELECT (SELECT string_agg(queue, ', ' ORDER BY queue) FROM {} WHERE paused_at IS NOT NULL), \
           (SELECT count(*) FROM {} WHERE held_before IS NOT NULL), \
           (SELECT max({CLOCK} - greatest(run_at, wanted_at, reserved_until)) FROM {} JOIN {} USING (queue, key) \
            WHERE awaits_turn AND state = 'scheduled')",
        session.table("queues"),
        session.table("groups"),
        session.table("jobs"),
        session.table("turns")
    );
    // A role may be able to read the jobs only.
    let (paused, paused_groups, late_turn): (_, _, Option<i64>) = session.row(&paused).await.unwrap_or_default();
    let late = Option::max(late, late_turn);
    let jobs =
        Jobs { all, waiting, oldest, running, dead, late, lapsed, long_ended, blocked, unknown, paused, paused_groups };
    Ok(judge(&jobs))
}

fn judge(jobs: &Jobs) -> Finding {
    let ended = jobs.all - jobs.waiting - jobs.running - jobs.dead;
    let [waiting, running, dead, ended] = [jobs.waiting, jobs.running, jobs.dead, ended].map(count);
    let late = |since: Option<i64>| since.map(micros).filter(|late| *late >= LATE).map(age);
    let oldest = jobs.oldest.map_or_else(String::new, |oldest| format!(" (the oldest for {})", age(micros(oldest))));
    let all = format!("{waiting} waiting{oldest}, {running} running, {dead} dead, {ended} ended");
    Finding::ok(if jobs.all == 0 { "none: the queue is empty, or not used".to_owned() } else { all })
        .and(late(jobs.late).map(|late| {
            Finding::warning(format!("the most overdue job should have begun {late} ago"))
                .advise("Run workers for its queue, or more of them; see pg-limiter queue ls. (A job is also late while a third")
                .advise("party has asked its group to wait, or while the tokens of its limit go to retried jobs.)")
        }))
        .and(jobs.paused.as_deref().map(|queues| {
            Finding::note(format!("paused, so that no job starts: {}", escaped(queues)))
                .advise("pg-limiter queue resume QUEUE ends the pause.")
        }))
        .and((jobs.paused_groups > 0).then(|| {
            Finding::note(format!("paused groups, of which no job starts: {}", count(jobs.paused_groups)))
                .advise("pg-limiter queue ls shows them, and pg-limiter queue resume QUEUE GROUP ends a pause.")
        }))
        .and(jobs.unknown.as_deref().filter(|_| jobs.blocked > 0).map(|limit| {
            let (blocked, limit) = (many(jobs.blocked.unsigned_abs(), "job"), escaped(limit));
            let whose = if jobs.blocked == 1 { "its limit" } else { "their limit, such as" };
            Finding::warning(format!("{blocked} cannot start: no worker defines {whose} \"{limit}\""))
                .advise("Define the limit for the workers of the queue, and as the kind that it had when the jobs were enqueued, or")
                .advise("cancel the jobs. pg-limiter queue ls has the number of blocked jobs of each group.")
        }))
        .and(late(jobs.lapsed).map(|lapsed| {
            Finding::warning(format!("a lease expired {lapsed} ago, and no worker took over the job"))
                .advise("Its worker has died: run another worker for its queue.")
        }))
        .and((jobs.dead > 0).then(|| {
            Finding::warning("dead jobs stay until you requeue or discard them")
                .advise("pg-limiter queue ls --state dead lists them. Requeue them (pg-limiter queue requeue), or remove them")
                .advise("(pg-limiter queue discard, or pg-limiter prune --dead-older-than 30d from cron).")
        }))
        .and((jobs.long_ended >= MANY_ENDED).then(|| {
            Finding::note(format!("{} ended jobs are more than 2 days old", count(jobs.long_ended)))
                .advise("Workers remove them after WorkerConfig::keep_ended; if you run no worker, call queue.prune().")
        }))
}

/// The share from which no notification is sent. It is that of `_ring`.
const HALF: f64 = 0.5;

pub(super) async fn notifications(session: &mut Session) -> sqlx::Result<Finding> {
    let (usage,) = session.row("SELECT pg_notification_queue_usage()").await?;
    let sql = "SELECT a.pid, coalesce(a.datname::text, ''), date_part('epoch', clock_timestamp() - a.xact_start) \
               FROM pg_stat_activity AS a \
               WHERE a.xact_start IS NOT NULL AND a.pid <> pg_backend_pid() AND a.backend_type = 'client backend' \
               ORDER BY a.xact_start LIMIT 1";
    Ok(judge_usage(usage, session.rows(sql).await?.pop()))
}

/// The oldest transaction: its pid, database, and age in seconds. If its session listens, no notification after its start is removed.
fn judge_usage(usage: f64, oldest: Option<(i32, String, f64)>) -> Finding {
    let found = format!("the queue of notifications is {:.0} % full", (usage * 100.0).floor());
    if usage < HALF {
        return Finding::ok(found);
    }
    let end = match oldest {
        Some((pid, database, seconds)) => format!(
            "The oldest transaction is {} old: pid {pid}, database {}. End it: SELECT pg_terminate_backend({pid});",
            age(length(seconds)),
            one_line(&database)
        ),
        None => "Look for it in pg_stat_activity as a role with pg_read_all_stats: ORDER BY xact_start.".to_owned(),
    };
    Finding::warning(format!("{found}: no worker is woken, and jobs wait until workers poll"))
        .advise("A session that LISTENs holds it up with a long transaction. When it is full, every commit with a NOTIFY fails.")
        .advise(end)
}

/// Logical replication copies no sequences, so a new primary can give a job an id that exists. `None`: all is well, or may not be read.
pub(super) async fn ids(session: &mut Session) -> Option<Finding> {
    let (jobs, sequence) = (session.table("jobs"), session.table("jobs_id_seq"));
    let sql = format!("SELECT (SELECT max(id) FROM {jobs}), (SELECT last_value + is_called::integer FROM {sequence})");
    let (newest, next) = session.row::<(Option<i64>, i64)>(&sql).await.ok()?;
    let newest = newest?;
    (next <= newest).then(|| {
        Finding::problem(format!(
            "the next job gets the id {next} or a little more, and jobs up to {newest} exist: enqueuing fails"
        ))
        .advise("The sequence is behind, as after logical replication, which copies no sequences. Move it on:")
        .advise(format!("SELECT setval('{sequence}', (SELECT max(id) FROM {jobs}));"))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::operate::doctor::State::{Note, Ok, Warning};

    #[test]
    fn late_lapsed_dead_and_old_jobs_are_reported() {
        let jobs = |change: fn(&mut Jobs)| {
            let mut jobs = Jobs { all: 30_000, waiting: 5, late: Some(-1), ..Jobs::default() };
            change(&mut jobs);
            judge(&jobs).state
        };
        assert_eq!([jobs(|_| {}), jobs(|jobs| jobs.late = Some(59_999_999))], [Ok, Ok]);
        assert_eq!([jobs(|jobs| jobs.late = Some(60_000_000)), jobs(|jobs| jobs.dead = 1)], [Warning, Warning]);
        assert_eq!(jobs(|jobs| (jobs.blocked, jobs.unknown) = (1, Some("a".to_owned()))), Warning);
        let paused = [jobs(|jobs| jobs.paused = Some("q".to_owned())), jobs(|jobs| jobs.paused_groups = 1)];
        assert_eq!(paused, [Note, Note]);
        assert_eq!(jobs(|jobs| jobs.lapsed = Some(60_000_000)), Warning);
        assert_eq!([jobs(|jobs| jobs.long_ended = 9_999), jobs(|jobs| jobs.long_ended = 10_000)], [Ok, Note]);
    }

    #[test]
    fn a_queue_that_is_half_full_is_reported_with_the_oldest_transaction() {
        let oldest = || Some((77, "shop".to_owned(), 7200.0));
        assert_eq!([judge_usage(0.0, None).state, judge_usage(0.499, oldest()).state], [Ok, Ok]);
        let finding = judge_usage(0.5, oldest());
        assert_eq!((finding.state, judge_usage(1.0, None).state), (Warning, Warning));
        let text = format!("{finding:?}");
        assert!(text.contains("50 % full") && text.contains("pid 77, database shop") && text.contains("2h"), "{text}");
    }
}
