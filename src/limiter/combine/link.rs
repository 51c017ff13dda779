//! The limiter's own connections: a decision is one statement in a transaction of its own.

use std::time::{Duration, Instant};

use sqlx::{Connection, PgConnection};
use tokio::runtime::{self, Handle};

use crate::error::{Cause, Engine, Phase};
use crate::limiter::attempt::{Decide, Failure, before, over_pool, transact};
use crate::limiter::combine::Combiner;
use crate::limiter::config::{Durability, Isolation};
use crate::limiter::session::open;
use crate::sql::{Alone, Answer, Batch, decide_alone, flush};

/// A connection that was not used for longer is looked after first: to be told that it is lost is better than not to know
/// what became of a statement.
const IDLE: Duration = Duration::from_secs(1);

/// The time after which the client gives up on a good-bye.
const TO_CLOSE: Duration = Duration::from_secs(1);

/// How many batches after a conflict, or after waits for a row, keep their rows for as short as can be.
const CONTENDED: u32 = 100;

/// How many waits in a row: one may be the machine's.
const WAITS: u32 = 3;

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
    /// How long an UPDATE takes here when nobody has the row.
    usual: Duration,
    /// How many in a row have taken far longer.
    waits: u32,
}

pub(super) struct Link {
    connection: PgConnection,
    used: Instant,
    /// The runtime that its socket belongs to.
    runtime: runtime::Id,
    /// The time for which the last statement waited for a row, as far as it is known; with that of the UPDATE itself.
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
        let mut connection = open(&options, &settings).await?;
        combiner.engine(&mut connection).await?;
        let runtime = Handle::current().id();
        Ok(Self { connection, used: Instant::now(), runtime, waited: Duration::ZERO })
    }
}

impl Links {
    /// Learns from a batch on one bucket.
    fn learn(&mut self, waited: Duration) {
        if waited.is_zero() {
            return;
        }
        // Even where it is slow an UPDATE takes no longer than this; and what was learnt may have been waits.
        let far_longer = waited > (self.usual * 3).clamp(Duration::from_micros(100), Duration::from_micros(250));
        self.waits = if far_longer { self.waits + 1 } else { 0 };
        if self.waits >= WAITS {
            self.contended = CONTENDED;
        }
        // The least of them, forgotten slowly.
        self.usual = if self.usual.is_zero() { waited } else { waited.min(self.usual + self.usual / 64) };
    }

    pub(super) async fn close(self) {
        for link in self.link.into_iter().chain(self.quick) {
            let _ = tokio::time::timeout(TO_CLOSE, link.connection.close()).await; // It is gone in any case.
        }
    }
}

/// Decides a batch: once, over the lane's own connections or over the pool. `alone` says that no other lane decides.
pub(super) async fn attempt(
    combiner: &Combiner,
    links: &mut Links,
    batch: &Batch,
    alone: bool,
    deadline: Instant,
) -> Result<Vec<Answer>, Failure> {
    if !combiner.goes_over_pool() {
        let quick = links.contended > 0
            && combiner.durability == Durability::Full
            && combiner.known_engine() == Some(Engine::PostgreSql);
        let result = if quick {
            links.contended -= 1;
            quickly(combiner, links, batch, deadline).await
        } else {
            on(&mut links.link, combiner, combiner.durability, deadline, Work::Decide(batch)).await
        };
        match result {
            Err(failure) if failure.cause(combiner.known_engine()) == Cause::Settings => {
                combiner.give_up_own_connections();
            }
            result => {
                let decided_on = if quick { &links.quick } else { &links.link };
                let waited = decided_on.as_ref().map_or(Duration::ZERO, |link| link.waited);
                match &result {
                    Ok(_) => links.learn(waited),
                    // Between lanes, keys of one index page may be a conflict, too; on one key, it is another process.
                    Err(failure)
                        if failure.cause(combiner.known_engine()) == Cause::Conflict
                            && (alone || !batch.has_several_buckets()) =>
                    {
                        links.contended = CONTENDED;
                    }
                    Err(_) => {}
                }
                if matches!(&result, Err(failure) if failure.breaks_the_connection(combiner.known_engine())) {
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
    let mut link = before(deadline, ready).await.map_err(Failure::at(Phase::Connect))?;
    let result = link.run(combiner, deadline, work).await;
    if !matches!(&result, Err(failure) if failure.breaks_the_connection(combiner.known_engine())) {
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
                let flushed = before(deadline, flush(&mut self.connection, combiner.rate_limits.statements())).await;
                return flushed.map(|()| Vec::new()).map_err(Failure::at(Phase::Statement));
            }
        };
        // With less time than the server may take it has to be told how much, and then the statement is not alone. And
        // YugabyteDB may answer with an error what it has committed: there, COMMIT has to be told from the statement.
        if combiner.known_engine() != Some(Engine::PostgreSql)
            || deadline.saturating_duration_since(Instant::now()) <= combiner.statement_timeout()
        {
            let answers = transact(combiner, &mut self.connection, deadline, &Decide(batch)).await;
            if matches!(&answers, Err(failure) if !failure.breaks_the_connection(combiner.known_engine())) {
                // The driver keeps the ROLLBACK for its next message, and nobody knows when that will be. If it cannot be
                // sent, the connection is lost, and whoever uses it next finds out before anything is decided.
                let _ = before(deadline, self.connection.ping()).await;
            }
            return answers;
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
