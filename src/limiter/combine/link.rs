//! The limiter's own connections: a decision is one statement in a transaction of its own.

use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use sqlx::{Connection, PgConnection};
use tokio::runtime::{self, Handle};

use crate::error::{Phase, refuses_settings};
use crate::limiter::attempt::{Decide, Failure, before, over_pool, transact};
use crate::limiter::combine::Combiner;
use crate::limiter::config::{Durability, Isolation};
use crate::sql::{Alone, Answer, Batch, decide_alone, flush};

/// A connection that was not used for longer is looked after first: to be told that it is lost is better than not to know
/// what became of a statement.
const IDLE: Duration = Duration::from_secs(1);

/// The time after which the client gives up on a good-bye.
const TO_CLOSE: Duration = Duration::from_secs(1);

/// What waits longer for a row has waited for another transaction.
const A_LOCK: Duration = Duration::from_micros(100);

/// How many batches after that, or after a conflict, keep their rows for as short as can be.
const CONTENDED: u32 = 100;

/// The connections of a lane.
#[derive(Default)]
pub(super) struct Links {
    link: Option<Link>,
    /// One whose commits do not wait for the disk.
    quick: Option<Link>,
    /// The server has been seen to take `Work::Flush`.
    flushes: bool,
    /// For how many batches more other processes are expected to want the same rows.
    contended: u32,
}

pub(super) struct Link {
    connection: PgConnection,
    used: Instant,
    /// The runtime that its socket belongs to.
    runtime: runtime::Id,
    /// The time for which the last statement waited for a row, as far as it is known.
    waited: Duration,
}

impl Link {
    async fn open(combiner: &Combiner, durability: Durability) -> Result<Self, sqlx::Error> {
        let isolation = match combiner.isolation {
            Isolation::Serializable => "serializable",
            Isolation::ReadCommitted => "read committed",
        };
        let timeout = combiner.statement_timeout().as_millis().to_string();
        let mut settings = vec![("default_transaction_isolation", isolation), ("statement_timeout", &timeout)];
        settings.extend(durability.setting());
        let options = combiner.pool.connect_options();
        let connection = PgConnection::connect_with(&(*options).clone().options(settings)).await?;
        let runtime = Handle::current().id();
        Ok(Self { connection, used: Instant::now(), runtime, waited: Duration::ZERO })
    }
}

impl Links {
    /// Whether somebody else had the row: what is longer than this is no UPDATE.
    fn has_waited(&self) -> bool {
        [&self.link, &self.quick].into_iter().flatten().any(|link| link.waited > A_LOCK)
    }

    pub(super) async fn close(self) {
        for link in self.link.into_iter().chain(self.quick) {
            let _ = tokio::time::timeout(TO_CLOSE, link.connection.close()).await; // It is gone in any case.
        }
    }
}

/// Decides a batch: once, over the lane's own connection or over the pool.
pub(super) async fn attempt(
    combiner: &Combiner,
    links: &mut Links,
    batch: &Batch,
    deadline: Instant,
) -> Result<Vec<Answer>, Failure> {
    if !combiner.over_pool.load(Ordering::Relaxed) {
        let result = if links.contended > 0 && combiner.durability == Durability::Full {
            links.contended -= 1;
            quickly(combiner, links, batch, deadline).await
        } else {
            on(&mut links.link, combiner, combiner.durability, deadline, Work::Decide(batch)).await
        };
        match result {
            Err(failure) if failure.phase == Phase::Begin && refuses_settings(&failure.error) => {
                combiner.over_pool.store(true, Ordering::Relaxed);
            }
            result => {
                let conflict = matches!(&result, Err(failure) if failure.is_conflict());
                if conflict || links.has_waited() {
                    links.contended = CONTENDED;
                }
                if matches!(&result, Err(failure) if failure.breaks_the_connection()) {
                    // What ended one has mostly ended the other, and a flush must not be what finds out.
                    links.link = None;
                    links.quick = None;
                }
                return result;
            }
        }
    }
    over_pool(combiner, deadline, &Decide(batch)).await
}

/// What another process waits for is the commit, and that waits for the disk. So commit without waiting, which lets go of
/// the rows, and wait for the disk before anybody is told: what others decide meanwhile is written after this, and lost
/// with it or not at all. (The early release of locks: DeWitt et al., "Implementation techniques for main memory database
/// systems", 1984.)
async fn quickly(
    combiner: &Combiner,
    links: &mut Links,
    batch: &Batch,
    deadline: Instant,
) -> Result<Vec<Answer>, Failure> {
    if !links.flushes {
        // Not everywhere: better to find out before something is decided.
        if on(&mut links.link, combiner, combiner.durability, deadline, Work::Flush).await.is_err() {
            links.contended = 0;
            return on(&mut links.link, combiner, combiner.durability, deadline, Work::Decide(batch)).await;
        }
        links.flushes = true;
    }
    let answers = on(&mut links.quick, combiner, Durability::Relaxed, deadline, Work::Decide(batch)).await?;
    if batch.may_write() && answers.iter().any(Answer::is_ok) {
        let flushed = on(&mut links.link, combiner, combiner.durability, deadline, Work::Flush).await;
        flushed.map_err(|failure| Failure { phase: Phase::Flush, ..failure })?;
    }
    Ok(answers)
}

/// What is done over a connection in one round trip.
#[derive(Clone, Copy)]
enum Work<'a> {
    Decide(&'a Batch),
    /// Waits until all that was committed before is on the disk.
    Flush,
}

/// Over this connection, which is opened or replaced if need be. While it is in use it is taken out: if this future is
/// dropped, it is closed with it.
async fn on(
    place: &mut Option<Link>,
    combiner: &Combiner,
    durability: Durability,
    deadline: Instant,
    work: Work<'_>,
) -> Result<Vec<Answer>, Failure> {
    let ready = async {
        if let Some(mut link) = place.take()
            && link.runtime == Handle::current().id()
            && (link.used.elapsed() <= IDLE || link.connection.ping().await.is_ok())
        {
            return Ok(link);
        }
        Link::open(combiner, durability).await
    };
    let mut link = before(deadline, ready).await.map_err(Failure::at(Phase::Begin))?;
    let result = link.run(combiner, deadline, work).await;
    if !matches!(&result, Err(failure) if failure.breaks_the_connection()) {
        link.used = Instant::now();
        *place = Some(link);
    }
    result
}

impl Link {
    async fn run(&mut self, combiner: &Combiner, deadline: Instant, work: Work<'_>) -> Result<Vec<Answer>, Failure> {
        let batch = match work {
            Work::Decide(batch) => batch,
            Work::Flush => {
                let flushed = before(deadline, flush(&mut self.connection)).await;
                return flushed.map(|()| Vec::new()).map_err(Failure::at(Phase::Statement));
            }
        };
        // With less time than the server may take it has to be told how much, and then the statement is not alone.
        if deadline.saturating_duration_since(Instant::now()) <= combiner.statement_timeout() {
            return transact(combiner, &mut self.connection, deadline, &Decide(batch)).await;
        }
        let statements = combiner.rate_limits.statements();
        let mut alone = Alone::default();
        let answers = before(deadline, decide_alone(&mut self.connection, statements, batch, &mut alone)).await;
        self.waited = alone.waited;
        answers.map_err(|error| {
            // An error that the server tells before the result ends the transaction. Everything else leaves it open.
            let told = error.as_database_error().is_some() && !alone.committing;
            Failure { phase: if told { Phase::Statement } else { Phase::Commit }, error }
        })
    }
}
