//! The faults that a soak causes. They affect only its own connections.

use std::sync::Arc;
use std::time::Duration;

use fastrand::Rng;
use pg_limiter::Error;
use sqlx::{Connection, PgConnection};

use super::database::connect;
use super::setup::SoakSetup;
use super::stats::Stats;

/// Ends one of the soak's own sessions or statements.
#[derive(Clone, Copy)]
pub(super) enum Signal {
    Terminate,
    Cancel,
}

impl Signal {
    const fn name(self) -> &'static str {
        match self {
            Self::Terminate => "pg_terminate_backend",
            Self::Cancel => "pg_cancel_backend",
        }
    }

    /// The approximate time between two signals, in milliseconds.
    const fn pause(self) -> u64 {
        match self {
            Self::Terminate => 500,
            Self::Cancel => 100,
        }
    }

    /// The statement selects sessions only in this database and with this soak's random application name.
    const fn sql(self) -> &'static str {
        match self {
            Self::Terminate => {
                "SELECT pg_catalog.pg_terminate_backend(t.pid) FROM (SELECT a.pid FROM pg_catalog.pg_stat_activity AS a \
                 WHERE a.application_name = $1 AND a.datname = pg_catalog.current_database() \
                 ORDER BY pg_catalog.random() LIMIT 1) AS t"
            }
            Self::Cancel => {
                "SELECT pg_catalog.pg_cancel_backend(t.pid) FROM (SELECT a.pid FROM pg_catalog.pg_stat_activity AS a \
                 WHERE a.application_name = $1 AND a.datname = pg_catalog.current_database() \
                 AND a.state <> 'idle' ORDER BY pg_catalog.random() LIMIT 1) AS t"
            }
        }
    }
}

/// A random time between a quarter and 1.75 times `millis`.
fn about(millis: u64, dice: &mut Rng) -> Duration {
    Duration::from_millis(millis / 4 + dice.usize(..millis as usize * 3 / 2) as u64)
}

async fn connected(setup: &SoakSetup, connection: &mut Option<PgConnection>) -> Option<PgConnection> {
    match connection.take() {
        Some(connection) => Some(connection),
        None => connect(&setup.options_for_faults()).await.ok(),
    }
}

pub(super) async fn signals(setup: Arc<SoakSetup>, stats: Arc<Stats>, signal: Signal, mut dice: Rng) {
    let application = setup.application();
    let mut idle = None;
    while stats.pause(about(signal.pause(), &mut dice)).await {
        let Some(mut connection) = connected(&setup, &mut idle).await else { continue };
        let sent = sqlx::query_scalar::<_, bool>(signal.sql()).bind(&application).fetch_optional(&mut connection).await;
        match sent {
            Ok(sent) => {
                if sent == Some(true) {
                    stats.injected(signal.name());
                }
                idle = Some(connection);
            }
            Err(error) if error.as_database_error().is_some() => {
                return stats.note(&format!("{} is skipped: {}", signal.name(), Error::database_message(&error)));
            }
            Err(_) => {} // The faults may end this connection, too.
        }
    }
    if let Some(connection) = idle {
        let _ = connection.close().await; // An error does not matter at the end.
    }
}

/// Locks a row that other callers are using, for up to a second, and then rolls back.
pub(super) async fn hold(setup: Arc<SoakSetup>, stats: Arc<Stats>, mut dice: Rng) {
    let mut idle = None;
    while stats.pause(about(1500, &mut dice)).await {
        let Some(call) = setup.any_hot(&mut dice) else { continue };
        let Some(mut connection) = connected(&setup, &mut idle).await else { continue };
        let Ok(mut tx) = connection.begin().await else { continue };
        // Other callers compete for the same row, so this call may fail.
        let held = setup.audit().within(&mut tx).limit(call).await;
        let holds = held.is_ok_and(|decision| decision.is_allowed());
        if holds {
            stats.injected("row held");
            stats.pause(Duration::from_millis(50 + dice.usize(..950) as u64)).await;
        }
        if tx.rollback().await.is_ok() {
            idle = Some(connection);
        }
    }
    if let Some(connection) = idle {
        let _ = connection.close().await; // An error does not matter at the end.
    }
}
