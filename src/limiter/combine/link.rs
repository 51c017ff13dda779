//! The limiter's own connection: a decision is one statement in a transaction of its own.

use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use sqlx::{Connection, PgConnection};

use crate::error::{Phase, refuses_settings};
use crate::limiter::attempt::{Decide, Failure, before, over_pool, transact};
use crate::limiter::combine::Combiner;
use crate::limiter::config::Isolation;
use crate::sql::{Answer, Batch, decide_alone};

/// A connection that was not used for longer is looked after first: to be told that it is lost is better than not to know
/// what became of a statement.
const IDLE: Duration = Duration::from_secs(1);

/// The time after which the client gives up on a good-bye.
const TO_CLOSE: Duration = Duration::from_secs(1);

pub(super) struct Link {
    connection: PgConnection,
    used: Instant,
}

impl Link {
    async fn open(combiner: &Combiner) -> Result<Self, sqlx::Error> {
        let isolation = match combiner.isolation {
            Isolation::Serializable => "serializable",
            Isolation::ReadCommitted => "read committed",
        };
        let timeout = combiner.statement_timeout().as_millis().to_string();
        let mut settings = vec![("default_transaction_isolation", isolation), ("statement_timeout", &timeout)];
        settings.extend(combiner.durability.setting());
        let options = combiner.pool.connect_options();
        let connection = PgConnection::connect_with(&(*options).clone().options(settings)).await?;
        Ok(Self { connection, used: Instant::now() })
    }

    pub(super) async fn close(self) {
        let _ = tokio::time::timeout(TO_CLOSE, self.connection.close()).await; // It is gone in any case.
    }
}

/// Decides a batch: once, over the lane's own connection or over the pool.
pub(super) async fn attempt(
    combiner: &Combiner,
    link: &mut Option<Link>,
    batch: &Batch,
    deadline: Instant,
) -> Result<Vec<Answer>, Failure> {
    if !combiner.over_pool.load(Ordering::Relaxed) {
        match ready(combiner, link, deadline).await {
            Ok(mut open) => {
                let result = once(combiner, &mut open, batch, deadline).await;
                if !matches!(&result, Err(failure) if failure.breaks_the_connection()) {
                    open.used = Instant::now();
                    *link = Some(open);
                }
                return result;
            }
            Err(error) if refuses_settings(&error) => combiner.over_pool.store(true, Ordering::Relaxed),
            Err(error) => return Err(Failure { phase: Phase::Begin, error }),
        }
    }
    over_pool(combiner, deadline, &Decide(batch)).await
}

/// Takes the connection out: if this future is dropped, it is closed with it.
async fn ready(combiner: &Combiner, link: &mut Option<Link>, deadline: Instant) -> Result<Link, sqlx::Error> {
    let Some(mut open) = link.take() else {
        return before(deadline, Link::open(combiner)).await;
    };
    if open.used.elapsed() > IDLE && before(deadline, open.connection.ping()).await.is_err() {
        return before(deadline, Link::open(combiner)).await;
    }
    Ok(open)
}

async fn once(combiner: &Combiner, link: &mut Link, batch: &Batch, deadline: Instant) -> Result<Vec<Answer>, Failure> {
    let statements = combiner.rate_limits.statements();
    // With less time than the server may take, it has to be told; and a statement that it was told about is not alone.
    if deadline.saturating_duration_since(Instant::now()) <= combiner.statement_timeout() {
        return transact(combiner, &mut link.connection, deadline, &Decide(batch)).await;
    }
    let mut committing = false;
    let answers = before(deadline, decide_alone(&mut link.connection, statements, batch, &mut committing)).await;
    answers.map_err(|error| {
        // An error that the server tells before the result ends the transaction. Everything else leaves it open.
        let told = error.as_database_error().is_some() && !committing;
        Failure { phase: if told { Phase::Statement } else { Phase::Commit }, error }
    })
}
