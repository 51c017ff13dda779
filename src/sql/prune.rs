//! Calls `rate_limit.prune`, one step at a time, and `_prune_answers`.

use sqlx::{PgConnection, Row};

use crate::sql::Statements;

/// The primary key of the last row that a step examined.
pub(crate) struct LastRow {
    name: String,
    key: String,
    shard: i32,
}

/// The result of one step.
pub(crate) struct PruneStep {
    /// The number of rows deleted.
    pub(crate) pruned: u64,
    /// Where the next step continues; `None` at the end of the table.
    pub(crate) last: Option<LastRow>,
}

/// Examines the next `step` rows after this one, or from the beginning, and deletes those that mean the same as no row.
pub(crate) async fn prune(
    connection: &mut PgConnection,
    statements: &Statements,
    step: i32,
    after: Option<&LastRow>,
) -> Result<PruneStep, sqlx::Error> {
    let row = statements
        .prune
        .query()
        .bind(step)
        .bind(after.map(|row| row.name.as_str()))
        .bind(after.map(|row| row.key.as_str()))
        .bind(after.map(|row| row.shard))
        .fetch_one(connection)
        .await?;
    let name: Option<String> = row.try_get(1)?;
    let last = match name {
        Some(name) => Some(LastRow { name, key: row.try_get(2)?, shard: row.try_get(3)? }),
        None => None,
    };
    Ok(PruneStep { pruned: row.try_get::<i64, _>(0)?.unsigned_abs(), last })
}

/// Deletes at most `step` expired answers, and returns how many it deleted.
pub(crate) async fn prune_answers(
    connection: &mut PgConnection,
    statements: &Statements,
    step: i32,
) -> Result<u64, sqlx::Error> {
    let pruned: i64 = statements.prune_answers.scalar().bind(step).fetch_one(connection).await?;
    Ok(pruned.unsigned_abs())
}
