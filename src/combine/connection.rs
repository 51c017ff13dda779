//! The limiter's own connections, on which a decision is one statement in its own transaction.

use std::time::{Duration, Instant};

use sqlx::{AssertSqlSafe, Connection, PgConnection};
use tokio::runtime::{self, Handle};
use tokio::sync::oneshot;

use crate::error::{Engine, Phase};
use crate::sql::{Alone, Answer, Batch, decide_alone, flush};
use crate::transact::{Bounds, Decide, Durability, Failure, LookForHeld, Statement, Transactor};
use crate::transact::{before, open_session};

/// A connection that was idle for longer is checked before use. It is better to find out then that it is lost than to
/// lose the outcome of a statement.
const IDLE: Duration = Duration::from_secs(1);

/// How long a batch in a lane waits for one lock. A commit takes a fraction of a millisecond, or a few milliseconds on
/// a slow disk. A longer wait means that the owner keeps the row locked.
pub(super) const LOCK_TIMEOUT: Duration = Duration::from_millis(50);

/// How long the client waits for a connection to close.
const TO_CLOSE: Duration = Duration::from_secs(1);

/// For how many batches, after a conflict or after repeated waits for a row, locks are held as briefly as possible.
const CONTENDED: u32 = 100;

/// How many waits in a row count as contention: a single one may be caused by the machine.
const WAITS: u32 = 3;

/// How many statements of a session may take long without a wait: PostgreSQL plans them.
const PLANNED: u32 = 10;

/// The first batches with contention, and again after many of them, measure how far away the server is.
const MEASURED: u32 = 3;
const MEASURED_EVERY: u32 = 1_000;

/// No server takes so long to answer that is near, even on a busy machine.
const FAR: Duration = Duration::from_millis(2);

/// Settings for opening the limiter's own connections, and for closing them with the pool.
#[derive(Clone, Copy)]
pub(super) struct Sessions<'a> {
    pub(super) transactor: &'a Transactor,
    /// Starts a task that closes all connections when the pool is closed, unless the returned sender is dropped before.
    pub(super) close_with_pool: &'a (dyn Fn() -> oneshot::Sender<()> + Sync),
}

/// The connection of a lane, and what it has learned about other processes that use the same rows.
#[derive(Default)]
pub(crate) struct LaneConnections {
    kept: Option<LaneConnection>,
    /// Whether the server is known to support `flush`.
    flushes: bool,
    /// For how many more batches other processes are expected to want the same rows.
    contended: u32,
    /// How long an UPDATE takes here when the row is not locked.
    usual: Duration,
    /// How many in a row have taken far longer.
    waits: u32,
    /// How many batches were expected to meet contention.
    expected: u32,
    /// How long a batch takes here beside its UPDATE, if it does not wait for the disk: a round trip to the server. The shortest time
    /// measured; the longest there is, if it is not known. So is the next one.
    trip: Duration,
    /// How long it takes to flush a batch to disk: a round trip, too, and the write.
    flush: Duration,
}

pub(super) struct LaneConnection {
    connection: PgConnection,
    used: Instant,
    /// How many batches were sent alone.
    batches: u32,
    /// The runtime that owns its socket.
    runtime: runtime::Id,
    /// A task on that runtime closes the connection when the pool closes.
    _close_with_pool: oneshot::Sender<()>,
}

impl LaneConnection {
    /// Returns the kept connection if it is usable, or opens a new one with these settings.
    pub(super) async fn ready(
        kept: Option<Self>,
        sessions: Sessions<'_>,
        settings: &[(&str, &str)],
        deadline: Instant,
    ) -> Result<Self, Failure> {
        let ready = async {
            if let Some(mut kept) = kept
                && kept.runtime == Handle::current().id()
                && (kept.used.elapsed() <= IDLE || kept.connection.ping().await.is_ok())
            {
                return Ok(kept);
            }
            let mut connection = open_session(&sessions.transactor.pool, settings).await?;
            sessions.transactor.engine(&mut connection).await?;
            // The settings were chosen before the engine was known.
            if settings.iter().all(|(_, value)| *value != sessions.transactor.isolation().as_setting()) {
                let isolation = sessions.transactor.isolation().as_sql();
                let set = format!("SET SESSION CHARACTERISTICS AS TRANSACTION ISOLATION LEVEL {isolation}");
                sqlx::raw_sql(AssertSqlSafe(set)).execute(&mut connection).await?;
            }
            Ok(Self {
                connection,
                used: Instant::now(),
                batches: 0,
                runtime: Handle::current().id(),
                _close_with_pool: (sessions.close_with_pool)(),
            })
        };
        before(deadline, ready).await.map_err(Failure::at(Phase::Connect))
    }

    /// Makes one attempt at the statement, in a transaction with its own time limits.
    pub(super) async fn transact<S: Statement>(
        &mut self,
        transactor: &Transactor,
        bounds: Bounds,
        statement: &S,
    ) -> Result<S::Output, Failure> {
        let result = transactor.transact(&mut self.connection, bounds, statement).await;
        if matches!(&result, Err(failure) if !failure.breaks_the_connection(transactor.known_engine())) {
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

    /// Sends a batch to be decided, in one round trip if the session's settings allow it. Also returns how long it
    /// waited for a row, as far as that is known.
    async fn send_batch(
        &mut self,
        transactor: &Transactor,
        batch: &Batch,
        waits_for_disk: bool,
        deadline: Instant,
    ) -> Result<(Vec<Answer>, Duration), Failure> {
        // If less time is left than the session's timeout, the server needs a shorter timeout, so the statement cannot
        // be sent alone.
        if !transactor.known_engine().is_some_and(Engine::runs_alone)
            || deadline.saturating_duration_since(Instant::now()) <= transactor.statement_timeout()
        {
            let bounds = Bounds { deadline, lock_timeout: lock_timeout(transactor) };
            return Ok((self.transact(transactor, bounds, &Decide(batch)).await?, Duration::ZERO));
        }
        let statements = transactor.transaction_limiter.statements();
        let mut alone = Alone::default();
        let running = decide_alone(&mut self.connection, statements, batch, waits_for_disk, &mut alone);
        let answers = before(deadline, running).await.map_err(|error| {
            // An error that the server reports before the result ends the transaction. After any other error, the
            // outcome is unknown.
            let answered = error.as_database_error().is_some() && !alone.committing;
            Failure { phase: if answered { transactor.phase_of_alone() } else { Phase::Commit }, error }
        })?;
        self.batches = self.batches.saturating_add(1);
        Ok((answers, if self.batches > PLANNED { alone.waited } else { Duration::ZERO }))
    }

    /// Waits until all earlier commits are on disk.
    async fn flush(&mut self, transactor: &Transactor, deadline: Instant) -> Result<(), sqlx::Error> {
        before(deadline, flush(&mut self.connection, transactor.transaction_limiter.statements())).await
    }
}

impl LaneConnections {
    /// Takes the lane's connection, and opens or replaces it if necessary. It is not in `self` while in use: if the
    /// caller is dropped, the connection is closed.
    async fn take(&mut self, sessions: Sessions<'_>, deadline: Instant) -> Result<LaneConnection, Failure> {
        let transactor = sessions.transactor;
        let (statement, lock) = (transactor.statement_timeout().as_millis(), lock_timeout(transactor).as_millis());
        let (statement, lock) = (statement.to_string(), lock.to_string());
        let mut settings = vec![
            ("default_transaction_isolation", transactor.isolation().as_setting()),
            ("statement_timeout", &*statement),
            ("lock_timeout", &*lock),
        ];
        settings.extend(transactor.durability.setting());
        LaneConnection::ready(self.kept.take(), sessions, &settings, deadline).await
    }

    fn put<T>(&mut self, transactor: &Transactor, mut connection: LaneConnection, result: &Result<T, Failure>) {
        if !matches!(result, Err(failure) if failure.breaks_the_connection(transactor.known_engine())) {
            connection.used = Instant::now();
            self.kept = Some(connection);
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
            self.expect_contention();
        }
        // The shortest time seen, raised slowly so that it can adapt.
        self.usual = if self.usual.is_zero() { waited } else { waited.min(self.usual + self.usual / 64) };
    }

    pub(super) async fn close(self) {
        if let Some(kept) = self.kept {
            kept.close().await;
        }
    }

    /// Sends a batch to be decided, and learns from how long that took.
    pub(super) async fn send_batch(
        &mut self,
        sessions: Sessions<'_>,
        batch: &Batch,
        deadline: Instant,
    ) -> Result<Vec<Answer>, Failure> {
        let transactor = sessions.transactor;
        let quick = transactor.durability == Durability::Full
            && transactor.known_engine() == Some(Engine::PostgreSql)
            && self.is_quick();
        let mut connection = self.take(sessions, deadline).await?;
        let result = if quick {
            self.quickly(&mut connection, transactor, batch, deadline).await
        } else {
            connection.send_batch(transactor, batch, true, deadline).await
        };
        self.put(transactor, connection, &result);
        let (answers, waited) = result?;
        self.learn(waited);
        Ok(answers)
    }

    /// Expects other processes to want the same rows, for some time.
    pub(super) fn expect_contention(&mut self) {
        self.contended = CONTENDED;
    }

    /// Whether to hold locks as briefly as possible for the next batch. That takes one more round trip, so it saves time only if the
    /// server is nearer than its disk.
    fn is_quick(&mut self) -> bool {
        if self.contended == 0 {
            return false;
        }
        self.contended -= 1;
        let nth = self.expected % MEASURED_EVERY;
        self.expected = self.expected.wrapping_add(1);
        if nth == 0 {
            (self.trip, self.flush) = (Duration::MAX, Duration::MAX);
        }
        let is_far = self.trip < Duration::MAX && self.trip >= FAR && self.trip >= self.flush.saturating_sub(self.trip);
        !is_far || nth < MEASURED
    }

    /// Returns which of these buckets have a row that another transaction has locked.
    pub(super) async fn look_for_held(
        &mut self,
        sessions: Sessions<'_>,
        looking: &LookForHeld<'_>,
        deadline: Instant,
    ) -> Result<Vec<Option<bool>>, Failure> {
        let mut connection = self.take(sessions, deadline).await?;
        let result = connection.transact(sessions.transactor, Bounds::until(deadline), looking).await;
        self.put(sessions.transactor, connection, &result);
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
        connection: &mut LaneConnection,
        transactor: &Transactor,
        batch: &Batch,
        deadline: Instant,
    ) -> Result<(Vec<Answer>, Duration), Failure> {
        if !self.flushes {
            // Not every server supports it: better to find out before anything is decided.
            let flushed = connection.flush(transactor, deadline).await.map_err(Failure::at(Phase::Begin));
            match flushed {
                Ok(()) => self.flushes = true,
                Err(failure) if failure.breaks_the_connection(transactor.known_engine()) => {
                    return Err(failure);
                }
                Err(_) => {
                    self.contended = 0;
                    return connection.send_batch(transactor, batch, true, deadline).await;
                }
            }
        }
        let began = Instant::now();
        let (answers, waited) = connection.send_batch(transactor, batch, false, deadline).await?;
        if !waited.is_zero() {
            self.trip = self.trip.min(began.elapsed().saturating_sub(waited));
        }
        if batch.may_write() && answers.iter().any(Answer::is_ok) {
            let began = Instant::now();
            connection.flush(transactor, deadline).await.map_err(Failure::at(Phase::Flush))?;
            self.flush = self.flush.min(began.elapsed());
        }
        Ok((answers, waited))
    }
}

/// Returns how long a batch in a lane waits for one lock.
pub(crate) fn lock_timeout(transactor: &Transactor) -> Duration {
    LOCK_TIMEOUT.min(transactor.statement_timeout())
}
