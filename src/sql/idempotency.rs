//! Calls with an idempotency key.

use std::time::Duration;

use sqlx::{PgConnection, Row};

use crate::call::{Op, Resolved};
use crate::error::{Error, InvalidCall};
use crate::limit::LONGEST_PERIOD;
use crate::sql::answer::of_several;
use crate::sql::query::bind_items;
use crate::sql::{Answer, Batch, Statements};

/// How long answers are kept by default: one day.
pub(crate) const KEEP_ANSWERS: Duration = Duration::from_secs(86_400);
const SHORTEST: Duration = Duration::from_micros(1);

/// The result of a call with an idempotency key.
pub(crate) enum Once {
    /// The answer, given now or stored before.
    Answered(Answer),
    /// The key was used for another call.
    Mismatched,
}

impl Once {
    pub(crate) fn answer(self) -> Result<Answer, Error> {
        match self {
            Self::Answered(answer) => Ok(answer),
            Self::Mismatched => Err(InvalidCall::IdempotencyKeyReused.into()),
        }
    }
}

/// Decides one call, or returns the answer that is stored under its key.
pub(crate) async fn decide_once(
    conn: &mut PgConnection,
    statements: &Statements,
    call: &Resolved,
    key: &str,
    keep: Duration,
) -> Result<Once, sqlx::Error> {
    let batch = Batch::of(call);
    let keep = i64::try_from(keep.clamp(SHORTEST, LONGEST_PERIOD).as_micros()).unwrap_or(i64::MAX);
    let query = statements.decide_once.query().bind(key).bind(keep);
    let row = bind_items(query, &batch)
        .bind(call.op.as_str())
        .bind(call.reserve && call.op == Op::Limit)
        .fetch_one(conn)
        .await?;
    let outcome: &str = row.try_get(0)?;
    if outcome == "mismatched" {
        return Ok(Once::Mismatched);
    }
    of_several(&row, 1, &batch)?.pop().map(Once::Answered).ok_or(sqlx::Error::RowNotFound)
}
