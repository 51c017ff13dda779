//! A pool's connection that comes back only if nothing is left running on it.

use std::ops::{Deref, DerefMut};
use std::time::Instant;

use sqlx::pool::PoolConnection;
use sqlx::{PgConnection, PgPool, Postgres};

use crate::limiter::attempt::before;

/// Unless [`release`](Self::release) was called, dropping it closes the connection: a statement may still be running,
/// and the next user of the connection would have to wait for it.
pub(crate) struct Held {
    connection: Option<PoolConnection<Postgres>>,
}

impl Held {
    pub(crate) async fn acquire(pool: &PgPool, deadline: Instant) -> Result<Self, sqlx::Error> {
        before(deadline, pool.acquire()).await.map(|connection| Self { connection: Some(connection) })
    }

    /// Back to the pool: the transaction has ended, well or in an error that the server told.
    pub(crate) fn release(mut self) {
        drop(self.connection.take());
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        if let Some(connection) = self.connection.take() {
            drop(connection.detach());
        }
    }
}

impl Deref for Held {
    type Target = PgConnection;

    fn deref(&self) -> &PgConnection {
        match &self.connection {
            Some(connection) => connection,
            None => unreachable!("taken by release and drop only, which end it"),
        }
    }
}

impl DerefMut for Held {
    fn deref_mut(&mut self) -> &mut PgConnection {
        match &mut self.connection {
            Some(connection) => connection,
            None => unreachable!("taken by release and drop only, which end it"),
        }
    }
}
