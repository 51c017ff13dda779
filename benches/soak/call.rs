//! One call for tokens, made in a random way.

use std::time::Duration;

use fastrand::Rng;
use pg_limiter::{Call, Decision, Error};
use sqlx::{AssertSqlSafe, Connection};

use super::setup::SoakSetup;
use super::stats::{Stats, Taken};

/// The longest time after which an impatient caller drops its call, in microseconds.
const PATIENCE: usize = 8000;

/// How the caller's own transaction ends.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum End {
    Commit,
    Rollback,
}

/// Makes a call in the caller's own transaction.
pub(super) async fn in_transaction(
    setup: &SoakSetup,
    dice: &mut Rng,
    call: Call,
    end: End,
    setting: &str,
) -> Result<Decision, Error> {
    let schema = setup.audit().schema().name();
    let failed = |error| Error::from_sql(error, schema);
    let mut connection = setup.any_pool(dice).acquire().await.map_err(failed)?;
    let level = ["READ COMMITTED", "REPEATABLE READ", "SERIALIZABLE"][dice.usize(..3)];
    let begin = AssertSqlSafe(format!("BEGIN ISOLATION LEVEL {level}{setting}"));
    let mut tx = connection.begin_with(begin).await.map_err(failed)?;
    let limiter = setup.any_limiter(dice);
    let decision = limiter.within(&mut tx).limit(call).await?;
    match end {
        // Whether a commit without an answer took effect is not known.
        End::Commit => tx.commit().await.map_err(|error| match failed(error) {
            Error::Unavailable { source } => Error::OutcomeUnknown { last: source },
            other => other,
        })?,
        End::Rollback => tx.rollback().await.map_err(failed)?,
    }
    Ok(decision)
}

/// The error of a unit of work. It keeps the database's error, so that a conflict is recognised and retried.
#[derive(Debug, thiserror::Error)]
pub(super) enum WorkError {
    #[error(transparent)]
    Limit(#[from] Error),
    #[error(transparent)]
    Database(#[from] sqlx::Error),
    #[error("rolled back on purpose")]
    OnPurpose,
}

impl WorkError {
    pub(super) fn taken(self, stats: &Stats) -> Taken {
        match self {
            Self::Limit(Error::Denied(_)) => {
                stats.decided();
                Taken::No
            }
            Self::Limit(error) => stats.failed(&error),
            Self::Database(error) => stats.failed(&Error::from_sql(error, "")),
            Self::OnPurpose => Taken::No,
        }
    }
}

/// Makes a call for tokens, and returns whether they were taken.
pub(super) async fn take(setup: &SoakSetup, stats: &Stats, dice: &mut Rng, call: Call, faults: bool) -> Taken {
    match dice.usize(..100) {
        0..65 => stats.taken(&setup.any_limiter(dice).limit(call).await),
        65..70 => impatient(stats, dice.usize(..PATIENCE), setup.any_limiter(dice).limit(call)).await,
        70..85 => {
            let setting = time_out(stats, dice, faults);
            stats.taken(&in_transaction(setup, dice, call, End::Commit, setting).await)
        }
        85..92 => match in_transaction(setup, dice, call, End::Rollback, "").await {
            Ok(_) => {
                stats.decided();
                Taken::No
            }
            // No COMMIT was sent, so no tokens were taken.
            Err(error) => {
                stats.failed(&error);
                Taken::No
            }
        },
        _ => unit(setup, stats, dice, call).await,
    }
}

/// Takes tokens in a unit of work that does nothing else.
async fn unit(setup: &SoakSetup, stats: &Stats, dice: &mut Rng, call: Call) -> Taken {
    let limiter = setup.any_limiter(dice);
    let within = limiter.clone();
    let gives_up = dice.usize(..8) == 0;
    let result = limiter
        .transaction(async move |tx| {
            let call = call.clone();
            within.within(tx).limit(call).await?.enforce()?;
            if gives_up { Err(WorkError::OnPurpose) } else { Ok(()) }
        })
        .await;
    match result {
        Ok(()) => {
            stats.decided();
            Taken::Yes
        }
        Err(error) => error.taken(stats),
    }
}

/// Makes the call, and drops it if it takes longer than `micros`.
pub(super) async fn impatient(
    stats: &Stats,
    micros: usize,
    call: impl Future<Output = Result<Decision, Error>>,
) -> Taken {
    match tokio::time::timeout(Duration::from_micros(micros as u64), call).await {
        Ok(answer) => stats.taken(&answer),
        Err(_) => {
            stats.cancelled();
            Taken::Perhaps
        }
    }
}

/// Returns SQL to run after BEGIN, which sets a very short time-out in one of ten transactions.
pub(super) fn time_out(stats: &Stats, dice: &mut Rng, faults: bool) -> &'static str {
    if !faults {
        return "";
    }
    match dice.usize(..20) {
        0 => {
            stats.injected("lock_timeout");
            "; SET LOCAL lock_timeout = 1"
        }
        1 => {
            stats.injected("statement_timeout");
            "; SET LOCAL statement_timeout = 2"
        }
        _ => "",
    }
}
