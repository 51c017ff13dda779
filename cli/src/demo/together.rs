use std::time::Duration;

use sqlx::AssertSqlSafe;

use crate::demo::stage::Stage;
use crate::error::CliError;
use crate::text::tokens;
use pg_limiter::{Error, Item, Limit, Limiter, Limits};

#[derive(Debug, thiserror::Error)]
enum AppError {
    #[error(transparent)]
    Limit(#[from] Error),
    #[error(transparent)]
    Database(#[from] sqlx::Error),
    #[error("the app failed")]
    Failed,
}

/// Two limits and the app's own INSERT in one transaction, all or nothing.
pub(super) async fn show(stage: &Stage) -> Result<(), CliError> {
    let screen = &stage.screen;
    screen.heading(
        4,
        "With your own writes",
        "a limit per user, a limit per organisation and an INSERT, in one transaction",
    )?;
    let hour = Duration::from_secs(3600);
    let limits = Limits::new()
        .define("per_user", Limit::token_bucket(1, hour).capacity(2))
        .and_then(|limits| limits.define("per_org", Limit::token_bucket(1, hour).capacity(5)))
        .map_err(CliError::usage)?;
    let limiter = stage.limiter(limits);
    let table = format!("{}.messages", stage.schema.quoted());
    sqlx::raw_sql(AssertSqlSafe(format!("CREATE TABLE {table} (author text)"))).execute(&stage.pool).await?;

    screen.line(format!("  {:<46} {}", "before", state(stage, &limiter, &table).await?))?;
    for (what, fails) in [
        ("limit both, INSERT, COMMIT", false),
        ("limit both, INSERT, the app fails: ROLLBACK", true),
        ("limit both, INSERT, COMMIT", false),
        ("the same again", false),
    ] {
        let result = limiter
            .transaction(async |tx| {
                let both = [Item::new("per_user", "u1"), Item::new("per_org", "o7")];
                limiter.within(tx).limit(both).await?.enforce()?;
                let insert = format!("INSERT INTO {table} VALUES ('u1')");
                sqlx::query(AssertSqlSafe(insert)).execute(&mut *tx).await?;
                if fails { Err(AppError::Failed) } else { Ok(()) }
            })
            .await;
        let what = match result {
            Ok(()) | Err(AppError::Failed) => what.to_owned(),
            Err(AppError::Limit(Error::Denied(denied))) => format!("{what}: denied by {}", denied.limits.join(", ")),
            Err(AppError::Limit(error)) => return Err(error.into()),
            Err(AppError::Database(error)) => return Err(error.into()),
        };
        screen.line(format!("  {what:<46} {}", state(stage, &limiter, &table).await?))?;
        tokio::time::sleep(Duration::from_millis(300)).await;
    }
    Ok(())
}

async fn state(stage: &Stage, limiter: &Limiter, table: &str) -> Result<String, CliError> {
    let count = format!("SELECT count(*) FROM {table}");
    let rows: i64 = sqlx::query_scalar(AssertSqlSafe(count)).fetch_one(&stage.pool).await?;
    let user = limiter.peek(("per_user", "u1")).await?.remaining();
    let org = limiter.peek(("per_org", "o7")).await?.remaining();
    // Rounded down: the hourly rate refills a fraction of a token meanwhile.
    Ok(format!("rows {rows}   user {}   organisation {}", tokens(user.floor()), tokens(org.floor())))
}
