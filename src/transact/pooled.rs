//! A pooled connection that returns to the pool only if no statement still runs on it.

use std::ops::{Deref, DerefMut};
use std::time::Instant;

use sqlx::pool::PoolConnection;
use sqlx::{PgConnection, PgPool, Postgres};

use crate::transact::before;

/// Dropping it closes the connection, unless [`release`](Self::release) was called: a statement may still be running,
/// and the next user of the connection would have to wait for it.
pub(crate) struct PooledConnection {
    connection: Option<PoolConnection<Postgres>>,
}

impl PooledConnection {
    pub(crate) async fn acquire(pool: &PgPool, deadline: Instant) -> Result<Self, sqlx::Error> {
        before(deadline, pool.acquire()).await.map(|connection| Self { connection: Some(connection) })
    }

    /// Returns the connection to the pool. The transaction must have ended, with success or with an error reported by
    /// the server.
    pub(crate) fn release(mut self) {
        drop(self.connection.take());
    }
}

impl Drop for PooledConnection {
    fn drop(&mut self) {
        if let Some(connection) = self.connection.take() {
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
