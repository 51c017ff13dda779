//! The limiter's own connections, on which a decision is one statement in its own transaction.

use std::time::{Duration, Instant};

use sqlx::{Connection, PgConnection};
use tokio::runtime::{self, Handle};
use tokio::sync::oneshot;

use crate::combine::Combiner;
use crate::error::{Cause, Engine, Phase};
use crate::sql::{Alone, Answer, Batch, decide_alone, flush};
use crate::transact::{Bounds, Decide, Failure, LookForHeld, Statement, before, open_session};
use crate::transact::{Durability, Isolation};

/// A connection that was idle for longer is checked before use. It is better to find out then that it is lost than to
/// lose the outcome of a statement.
const IDLE: Duration = Duration::from_secs(1);

/// How long the client waits for a connection to close.
const TO_CLOSE: Duration = Duration::from_secs(1);

/// For how many batches, after a conflict or after repeated waits for a row, locks are held as briefly as possible.
const CONTENDED: u32 = 100;

/// How many waits in a row count as contention: a single one may be caused by the machine.
const WAITS: u32 = 3;

/// The connection of a lane, and what it has learned about other processes that use the same rows.
#[derive(Default)]
pub(crate) struct LaneConnections {
    link: Option<LaneConnection>,
    /// Whether the server is known to support `flush`.
    flushes: bool,
    /// For how many more batches other processes are expected to want the same rows.
    contended: u32,
    /// How long an UPDATE takes here when the row is not locked.
    usual: Duration,
    /// How many in a row have taken far longer.
    waits: u32,
}

pub(super) struct LaneConnection {
    connection: PgConnection,
    used: Instant,
    /// The runtime that owns its socket.
    runtime: runtime::Id,
    /// A task on that runtime closes the connection when the pool closes.
    _close_with_pool: oneshot::Sender<()>,
}

impl LaneConnection {
    /// Returns the kept connection if it is usable, or opens a new one with these settings.
    pub(super) async fn ready(
        kept: Option<Self>,
        combiner: &Combiner,
        settings: &[(&str, &str)],
        deadline: Instant,
    ) -> Result<Self, Failure> {
        let ready = async {
            if let Some(mut link) = kept
                && link.runtime == Handle::current().id()
                && (link.used.elapsed() <= IDLE || link.connection.ping().await.is_ok())
            {
                return Ok(link);
            }
            let mut connection = open_session(&combiner.transactor.pool.connect_options(), settings).await?;
            combiner.transactor.engine(&mut connection).await?;
            Ok(Self {
                connection,
                used: Instant::now(),
                runtime: Handle::current().id(),
                _close_with_pool: combiner.close_with_pool(),
            })
        };
        before(deadline, ready).await.map_err(Failure::at(Phase::Connect))
    }

    /// Makes one attempt at the statement, in a transaction with its own time limits.
    pub(super) async fn transact<S: Statement>(
        &mut self,
        combiner: &Combiner,
        bounds: Bounds,
        statement: &S,
    ) -> Result<S::Output, Failure> {
        let result = combiner.transactor.transact(&mut self.connection, bounds, statement).await;
        if matches!(&result, Err(failure) if !failure.breaks_the_connection(combiner.transactor.known_engine())) {
            // The driver sends the ROLLBACK with its next message, which may be late. If it cannot be sent, the
            // connection is lost, and its next use detects that before anything is decided.
            let _ = before(bounds.deadline, self.connection.ping()).await;
        }
        self.used = Instant::now();
        result
    }

    pub(super) async fn close(self) {
        let _ = tokio::time::timeout(TO_CLOSE, self.connection.close()).await; // The connection is closed in any case.
    }

    /// Decides a batch, in one round trip if the session's settings allow it. Also returns how long it waited for a
    /// row, as far as that is known.
    async fn decide(
        &mut self,
        combiner: &Combiner,
        batch: &Batch,
        waits_for_disk: bool,
        deadline: Instant,
    ) -> Result<(Vec<Answer>, Duration), Failure> {
        // If less time is left than the session's timeout, the server needs a shorter timeout, so the statement cannot
        // be sent alone. YugabyteDB may report an error for a statement that it has committed, so there COMMIT is a
        // message of its own.
        if combiner.transactor.known_engine() != Some(Engine::PostgreSql)
            || deadline.saturating_duration_since(Instant::now()) <= combiner.statement_timeout()
        {
            let bounds = Bounds { deadline, lock_timeout: combiner.lock_timeout() };
            return Ok((self.transact(combiner, bounds, &Decide(batch)).await?, Duration::ZERO));
        }
        let statements = combiner.transactor.transaction_limiter.statements();
        let mut alone = Alone::default();
        let running = decide_alone(&mut self.connection, statements, batch, waits_for_disk, &mut alone);
        let answers = before(deadline, running).await.map_err(|error| {
            // An error that the server reports before the result ends the transaction. After any other error, the
            // outcome is unknown.
            let answered = error.as_database_error().is_some() && !alone.committing;
            Failure { phase: if answered { Phase::Statement } else { Phase::Commit }, error }
        })?;
        Ok((answers, alone.waited))
    }

    /// Waits until all earlier commits are on disk.
    async fn flush(&mut self, combiner: &Combiner, deadline: Instant) -> Result<(), sqlx::Error> {
        before(deadline, flush(&mut self.connection, combiner.transactor.transaction_limiter.statements())).await
    }
}

impl LaneConnections {
    /// Takes the lane's connection, and opens or replaces it if necessary. It is not in `self` while in use: if the
    /// caller is dropped, the connection is closed.
    async fn take(&mut self, combiner: &Combiner, deadline: Instant) -> Result<LaneConnection, Failure> {
        let isolation = match combiner.transactor.isolation {
            Isolation::Serializable => "serializable",
            Isolation::ReadCommitted => "read committed",
        };
        let (statement, lock) = (combiner.statement_timeout().as_millis(), combiner.lock_timeout().as_millis());
        let (statement, lock) = (statement.to_string(), lock.to_string());
        let mut settings = vec![
            ("default_transaction_isolation", isolation),
            ("statement_timeout", &*statement),
            ("lock_timeout", &*lock),
        ];
        settings.extend(combiner.transactor.durability.setting());
        LaneConnection::ready(self.link.take(), combiner, &settings, deadline).await
    }

    fn put<T>(&mut self, combiner: &Combiner, mut link: LaneConnection, result: &Result<T, Failure>) {
        if !matches!(result, Err(failure) if failure.breaks_the_connection(combiner.transactor.known_engine())) {
            link.used = Instant::now();
            self.link = Some(link);
        }
    }

    /// Learns from how long a batch on one bucket waited for its row.
    fn learn(&mut self, waited: Duration) {
        if waited.is_zero() {
            return;
        }
        // Even on a slow machine, an UPDATE takes no longer than this. The learned time alone is not enough: it may
        // include waits.
        let far_longer = waited > (self.usual * 3).clamp(Duration::from_micros(100), Duration::from_micros(250));
        self.waits = if far_longer { self.waits + 1 } else { 0 };
        if self.waits >= WAITS {
            self.contended = CONTENDED;
        }
        // The shortest time seen, raised slowly so that it can adapt.
        self.usual = if self.usual.is_zero() { waited } else { waited.min(self.usual + self.usual / 64) };
    }

    pub(super) async fn close(self) {
        if let Some(link) = self.link {
            link.close().await;
        }
    }

    /// Decides over the lane's own connection.
    async fn decide(
        &mut self,
        combiner: &Combiner,
        batch: &Batch,
        deadline: Instant,
    ) -> Result<(Vec<Answer>, Duration), Failure> {
        let quick = self.contended > 0
            && combiner.transactor.durability == Durability::Full
            && combiner.transactor.known_engine() == Some(Engine::PostgreSql);
        let mut link = self.take(combiner, deadline).await?;
        let result = if quick {
            self.contended -= 1;
            self.quickly(&mut link, combiner, batch, deadline).await
        } else {
            link.decide(combiner, batch, true, deadline).await
        };
        self.put(combiner, link, &result);
        result
    }

    /// Other processes wait for this commit, and the commit waits for the disk. So this commits without waiting for the
    /// disk, which unlocks the rows, and flushes to disk before it answers. Later decisions on these rows are written
    /// after this one: a crash that loses this one loses them, too. (The early release of locks: DeWitt et al.,
    /// "Implementation techniques for main memory database systems", 1984.)
    ///
    /// The commit and the flush use the same session. It ends when the server crashes; a flush in another session would
    /// prove nothing.
    async fn quickly(
        &mut self,
        link: &mut LaneConnection,
        combiner: &Combiner,
        batch: &Batch,
        deadline: Instant,
    ) -> Result<(Vec<Answer>, Duration), Failure> {
        if !self.flushes {
            // Not every server supports it: better to find out before anything is decided.
            let flushed = link.flush(combiner, deadline).await.map_err(Failure::at(Phase::Begin));
            match flushed {
                Ok(()) => self.flushes = true,
                Err(failure) if failure.breaks_the_connection(combiner.transactor.known_engine()) => {
                    return Err(failure);
                }
                Err(_) => {
                    self.contended = 0;
                    return link.decide(combiner, batch, true, deadline).await;
                }
            }
        }
        let (answers, waited) = link.decide(combiner, batch, false, deadline).await?;
        if batch.may_write() && answers.iter().any(Answer::is_ok) {
            link.flush(combiner, deadline).await.map_err(Failure::at(Phase::Flush))?;
        }
        Ok((answers, waited))
    }
}

/// Makes one attempt to decide a batch, over the lane's own connection or over the pool. `alone` is set if no other
/// lane of the process decides.
pub(super) async fn attempt(
    combiner: &Combiner,
    links: &mut LaneConnections,
    batch: &Batch,
    alone: bool,
    deadline: Instant,
) -> Result<Vec<Answer>, Failure> {
    if !combiner.goes_over_pool() {
        match links.decide(combiner, batch, deadline).await {
            Ok((answers, waited)) => {
                links.learn(waited);
                return Ok(answers);
            }
            Err(failure) => match failure.cause(combiner.transactor.known_engine()) {
                Cause::Settings => combiner.give_up_own_connections(),
                // With several lanes, keys on one index page can cause the conflict. On a single key, another process
                // caused it.
                Cause::Conflict if alone || !batch.has_several_buckets() => {
                    links.contended = CONTENDED;
                    return Err(failure);
                }
                _ => return Err(failure),
            },
        }
    }
    let bounds = Bounds { deadline, lock_timeout: combiner.lock_timeout() };
    combiner.transactor.over_pool(bounds, &Decide(batch)).await
}

/// Runs the query over the lane's own connection or over the pool.
pub(super) async fn look_for_held(
    combiner: &Combiner,
    links: &mut LaneConnections,
    looking: &LookForHeld<'_>,
    deadline: Instant,
) -> Result<Vec<Option<bool>>, Failure> {
    if combiner.goes_over_pool() {
        return combiner.transactor.over_pool(Bounds::until(deadline), looking).await;
    }
    let mut link = links.take(combiner, deadline).await?;
    let result = link.transact(combiner, Bounds::until(deadline), looking).await;
    links.put(combiner, link, &result);
    result
}
