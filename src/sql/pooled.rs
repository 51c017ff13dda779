//! A pooled connection that returns to the pool only if no statement still runs on it.

use std::ops::{Deref, DerefMut};
use std::time::{Duration, Instant};

use sqlx::pool::PoolConnection;
use sqlx::{Connection, PgConnection, PgPool, Postgres};
use tokio::runtime::Handle;

/// The longest time for which a dropped connection waits for its statement, if the server sets no end to that.
const AT_MOST: Duration = Duration::from_secs(30);

/// The time in which the server ends a statement at its deadline.
const TO_END: Duration = Duration::from_secs(1);

/// Dropping it closes the connection, unless [`release`](Self::release) was called: a statement may still be running, and the next
/// user of the connection would have to wait for it. The driver might also leave a transaction open, if BEGIN was not answered yet.
///
/// The connection counts as one of the pool's until that statement has ended. Otherwise calls that are dropped again and again, while
/// they wait for a row, would take any number of the server's sessions.
pub(crate) struct PooledConnection {
    connection: Option<PoolConnection<Postgres>>,
    /// When the server ends its statements at the latest, if it does.
    deadline: Option<Instant>,
}

impl PooledConnection {
    pub(crate) async fn acquire(pool: &PgPool) -> Result<Self, sqlx::Error> {
        Ok(Self { connection: Some(pool.acquire().await?), deadline: None })
    }

    /// Says when the server ends the statements that follow.
    pub(crate) fn ends_by(&mut self, deadline: Instant) {
        self.deadline = Some(deadline);
    }

    /// Returns the connection to the pool. The transaction must have ended, with success or with an error reported by
    /// the server.
    pub(crate) fn release(mut self) {
        drop(self.connection.take());
    }
}

impl Drop for PooledConnection {
    fn drop(&mut self) {
        let Some(connection) = self.connection.take() else { return };
        let leaving = Leaving(Some(connection));
        let to_end = self.deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()) + TO_END);
        if let Ok(runtime) = Handle::try_current() {
            runtime.spawn(leaving.close(to_end.map_or(AT_MOST, |to_end| to_end.min(AT_MOST))));
        }
    }
}

/// A connection that is about to be closed.
struct Leaving(Option<PoolConnection<Postgres>>);

impl Leaving {
    async fn close(mut self, at_most: Duration) {
        let Some(connection) = &mut self.0 else { return };
        // The server answers a ping after the statement that still runs.
        if let Ok(Ok(())) = tokio::time::timeout(at_most, connection.ping()).await
            && let Some(connection) = self.0.take()
        {
            let _ = tokio::time::timeout(TO_END, connection.close()).await;
        }
    }
}

impl Drop for Leaving {
    fn drop(&mut self) {
        if let Some(connection) = self.0.take() {
            drop(connection.detach());
        }
    }
}

impl Deref for PooledConnection {
    type Target = PgConnection;

    fn deref(&self) -> &PgConnection {
        match &self.connection {
            Some(connection) => connection,
            None => unreachable!("only release and drop take the connection, and both end its use"),
        }
    }
}

impl DerefMut for PooledConnection {
    fn deref_mut(&mut self) -> &mut PgConnection {
        match &mut self.connection {
            Some(connection) => connection,
            None => unreachable!("only release and drop take the connection, and both end its use"),
        }
    }
}
