//! Operations on jobs by their ids.

use std::collections::HashMap;

use sqlx::{PgConnection, Row};

use crate::sql::queue::{KnownLimits, QueueStatements};

/// Why a started job was not done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Again {
    Failed,
    Lapsed,
    GivenUp,
    Held,
    HeldTooOften,
    Released,
    Unstarted,
}

impl Again {
    /// The name in SQL and in logs.
    pub(crate) const fn as_str(self) -> &'static str {
        match self {
            Self::Failed => "failed",
            Self::Lapsed => "lapsed",
            Self::GivenUp => "given_up",
            Self::Held => "held",
            Self::HeldTooOften => "held_too_often",
            Self::Released => "released",
            Self::Unstarted => "unstarted",
        }
    }
}

/// Releases started jobs, to run again or to be dead, and returns their states after that; `None` for a start that was
/// not the job's last one. `delay` is in microseconds.
pub(crate) async fn again(
    conn: &mut PgConnection,
    statements: &QueueStatements,
    (ids, starts): (&[i64], &[i32]),
    (reason, delay, error): (Again, i64, &str),
    limits: &KnownLimits,
) -> Result<Vec<Option<String>>, sqlx::Error> {
    let query = statements.again.query().bind(ids).bind(starts).bind(reason.as_str()).bind(delay).bind(error);
    let states: Option<_> = limits.bind_with_shards(query).fetch_one(conn).await?.try_get(0)?;
    Ok(states.unwrap_or_default())
}

/// Marks a job as done, if this start was its last one, and returns whether it was.
pub(crate) async fn done(
    conn: &mut PgConnection,
    statements: &QueueStatements,
    id: i64,
    starts: i32,
    limits: &KnownLimits,
) -> Result<bool, sqlx::Error> {
    let query = statements.done.query().bind(id).bind(starts);
    limits.bind(query).fetch_one(conn).await?.try_get(0)
}

/// Extends the leases of these jobs, and returns the ids of those that are still running. `lease` is in microseconds.
pub(crate) async fn extend(
    conn: &mut PgConnection,
    statements: &QueueStatements,
    ids: &[i64],
    starts: &[i32],
    lease: i64,
) -> Result<Vec<i64>, sqlx::Error> {
    statements.extend.scalar().bind(ids).bind(starts).bind(lease).fetch_all(conn).await
}

/// Returns jobs with an expired lease: their ids, starts and failures.
pub(crate) async fn lapsed(
    conn: &mut PgConnection,
    statements: &QueueStatements,
    queue: &str,
    most: i32,
) -> Result<Vec<(i64, i32, i32)>, sqlx::Error> {
    let rows = statements.lapsed.query().bind(queue).bind(most).fetch_all(&mut *conn).await?;
    let ids = rows.iter().map(|row| row.try_get(0)).collect::<Result<Vec<i64>, _>>()?;
    let starts = rows.iter().map(|row| row.try_get(1)).collect::<Result<Vec<i32>, _>>()?;
    let mut failures: HashMap<i64, i32> = HashMap::new();
    for job in statements.failures.query().bind(&ids).bind(&starts).fetch_all(conn).await? {
        failures.insert(job.try_get("id")?, job.try_get("failures")?);
    }
    let of_job = |(id, starts)| Some((id, starts, *failures.get(&id)?)); // Without a row, it was taken over meanwhile.
    Ok(ids.into_iter().zip(starts).filter_map(of_job).collect())
}

/// Cancels a job, and returns the state that it was in; `None` if there is no such job.
pub(crate) async fn cancel(
    conn: &mut PgConnection,
    statements: &QueueStatements,
    queue: &str,
    id: i64,
    limits: &KnownLimits,
) -> Result<Option<String>, sqlx::Error> {
    let query = statements.cancel.query().bind(queue).bind(id);
    limits.bind_with_shards(query).fetch_one(conn).await?.try_get(0)
}

/// Settles an item of a job. Returns `settled`, `already`, `not_started` or `no_such_item`; `None` if there is no such
/// job.
pub(crate) async fn settle(
    conn: &mut PgConnection,
    statements: &QueueStatements,
    queue: &str,
    id: i64,
    (name, key, used): (&str, &str, f64),
    limits: &KnownLimits,
) -> Result<Option<String>, sqlx::Error> {
    let query = statements.settle.query().bind(queue).bind(id).bind(name).bind(key).bind(used);
    limits.bind_with_shards(query).fetch_one(conn).await?.try_get(0)
}

/// Requeues a job. Returns when it will run, in microseconds since the Unix epoch; `None` if there is no such job, or
/// if it is neither dead nor cancelled.
pub(crate) async fn requeue(
    conn: &mut PgConnection,
    statements: &QueueStatements,
    queue: &str,
    id: i64,
    limits: &KnownLimits,
) -> Result<Option<i64>, sqlx::Error> {
    let query = statements.requeue.query().bind(queue).bind(id);
    limits.bind_with_shards(query).fetch_one(conn).await?.try_get(0)
}

/// Pauses a queue, or one of its groups. Returns whether it was not paused before.
pub(crate) async fn pause(
    conn: &mut PgConnection,
    statements: &QueueStatements,
    queue: &str,
    group: Option<&str>,
) -> Result<bool, sqlx::Error> {
    statements.pause.scalar().bind(queue).bind(group).fetch_one(conn).await
}

/// Ends a pause, a drain or a wait. Returns whether there was one.
pub(crate) async fn resume(
    conn: &mut PgConnection,
    statements: &QueueStatements,
    queue: &str,
    group: Option<&str>,
) -> Result<bool, sqlx::Error> {
    statements.resume.scalar().bind(queue).bind(group).fetch_one(conn).await
}

/// Lets a queue run empty. Returns how many jobs are left.
pub(crate) async fn drain(
    conn: &mut PgConnection,
    statements: &QueueStatements,
    queue: &str,
) -> Result<i64, sqlx::Error> {
    statements.drain.scalar().bind(queue).fetch_one(conn).await
}

/// Requeues up to `most` dead jobs of a queue, or of one of its groups, that died before a time, or before now. Returns how many,
/// and the time.
pub(crate) async fn requeue_dead(
    conn: &mut PgConnection,
    statements: &QueueStatements,
    (queue, group, died_before): (&str, Option<&str>, Option<i64>),
    most: i32,
    limits: &KnownLimits,
) -> Result<(i64, i64), sqlx::Error> {
    let query = statements.requeue_dead.query().bind(queue).bind(group).bind(most);
    let row = limits.bind_with_shards(query).bind(died_before).fetch_one(conn).await?;
    Ok((row.try_get(0)?, row.try_get(1)?))
}

/// Deletes jobs that were done or cancelled at least `ended_for` microseconds ago, and returns how many it deleted.
pub(crate) async fn prune(
    conn: &mut PgConnection,
    statements: &QueueStatements,
    queue: &str,
    ended_for: i64,
    most: i32,
) -> Result<i64, sqlx::Error> {
    statements.prune.scalar().bind(queue).bind(ended_for).bind(most).fetch_one(conn).await
}

/// Where a walk over the groups of a queue goes on: after this key, or, with an id, after this job of it.
pub(crate) type WalkedTo = (Option<String>, Option<i64>);

/// Computes anew when the waiting jobs of a group start. Returns where to go on (no key at the end), and whether another
/// transaction has locked a bucket of the group, so that nothing was computed.
pub(crate) async fn retime(
    conn: &mut PgConnection,
    statements: &QueueStatements,
    (queue, worker): (&str, &str),
    (after_key, after_id): &WalkedTo,
    limits: &KnownLimits,
) -> Result<(WalkedTo, bool), sqlx::Error> {
    let query = statements.retime.query().bind(queue).bind(worker).bind(after_key).bind(after_id);
    let row = limits.bind_with_shards(query).fetch_one(conn).await?;
    Ok(((row.try_get(0)?, row.try_get(1)?), row.try_get::<Option<bool>, _>(2)?.unwrap_or(false)))
}

/// Deletes jobs of a queue, or of all queues, that have been dead for at least `dead_for` microseconds, and returns how
/// many it deleted.
pub(crate) async fn prune_dead(
    conn: &mut PgConnection,
    statements: &QueueStatements,
    queue: Option<&str>,
    dead_for: i64,
    most: i32,
) -> Result<i64, sqlx::Error> {
    statements.prune_dead.scalar().bind(queue).bind(dead_for).bind(most).fetch_one(conn).await
}

/// Deletes the dead jobs among these, and returns the ids of the deleted jobs.
pub(crate) async fn discard(
    conn: &mut PgConnection,
    statements: &QueueStatements,
    queue: &str,
    ids: &[i64],
) -> Result<Vec<i64>, sqlx::Error> {
    statements.discard.scalar().bind(queue).bind(ids).fetch_all(conn).await
}
