//! A connection that one caller keeps for its next statement.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use sqlx::PgPool;

use crate::sql::PooledConnection;

/// How long a connection is kept for a next statement.
const KEPT_FOR: Duration = Duration::from_secs(1);

/// A connection that one caller keeps for its next statement. PostgreSQL keeps a session's plans, so statements that run on one
/// session after the other are planned in each of them.
#[derive(Default)]
pub(crate) struct Kept(Mutex<Option<(PooledConnection, Instant)>>);

impl Kept {
    fn slot(&self) -> MutexGuard<'_, Option<(PooledConnection, Instant)>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the connection, unless the pool was closed, which waits for all its connections.
    pub(crate) fn take(&self, pool: &PgPool) -> Option<PooledConnection> {
        let (connection, _) = self.slot().take()?;
        if pool.is_closed() {
            connection.release();
            return None;
        }
        Some(connection)
    }

    /// Keeps the connection, unless others may wait for it.
    pub(crate) fn keep(&self, connection: PooledConnection, pool: &PgPool) {
        let is_used_up = pool.num_idle() == 0 && pool.size() >= pool.options().get_max_connections();
        if is_used_up || pool.is_closed() {
            return connection.release();
        }
        *self.slot() = Some((connection, Instant::now() + KEPT_FOR));
    }

    /// When to call [`release_unused`](Self::release_unused).
    pub(crate) fn until(&self) -> Option<Instant> {
        self.slot().as_ref().map(|(_, until)| *until)
    }

    /// Returns the connection to the pool if no statement has followed for a while.
    pub(crate) fn release_unused(&self) {
        if let Some((connection, _)) = self.slot().take_if(|(_, until)| *until <= Instant::now()) {
            connection.release();
        }
    }

    /// Returns the connection to the pool.
    pub(crate) fn release(&self) {
        if let Some((connection, _)) = self.slot().take() {
            connection.release();
        }
    }
}

impl Drop for Kept {
    fn drop(&mut self) {
        self.release();
    }
}
