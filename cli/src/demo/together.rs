use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};
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

    let before = state(stage, &limiter, &table).await?;
    screen.show(before.line("before"), before.object("before", &[]))?;
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
        let denied_by = match result {
            Ok(()) | Err(AppError::Failed) => Vec::new(),
            Err(AppError::Limit(Error::Denied(denied))) => denied.limits,
            Err(AppError::Limit(error)) => return Err(error.into()),
            Err(AppError::Database(error)) => return Err(error.into()),
        };
        let after = state(stage, &limiter, &table).await?;
        let title =
            if denied_by.is_empty() { what.to_owned() } else { format!("{what}: denied by {}", denied_by.join(", ")) };
        screen.show(after.line(&title), after.object(what, &denied_by))?;
        tokio::time::sleep(Duration::from_millis(300)).await;
    }
    Ok(())
}

/// The rows of the table, and the tokens that are left.
struct State {
    rows: i64,
    user: f64,
    organisation: f64,
}

impl State {
    fn line(&self, title: &str) -> String {
        let Self { rows, user, organisation } = self;
        format!("  {title:<46} rows {rows}   user {}   organisation {}", tokens(*user), tokens(*organisation))
    }

    fn object(&self, step: &str, denied_by: &[Arc<str>]) -> Value {
        let Self { rows, user, organisation } = self;
        let denied_by: Vec<&str> = denied_by.iter().map(|limit| &**limit).collect();
        json!({"step": step, "denied_by": denied_by, "rows": rows, "user": user, "organisation": organisation})
    }
}

async fn state(stage: &Stage, limiter: &Limiter, table: &str) -> Result<State, CliError> {
    let count = format!("SELECT count(*) FROM {table}");
    let rows: i64 = sqlx::query_scalar(AssertSqlSafe(count)).fetch_one(&stage.pool).await?;
    let user = limiter.peek(("per_user", "u1")).await?.remaining();
    let org = limiter.peek(("per_org", "o7")).await?.remaining();
    // Rounded down: the hourly rate refills a fraction of a token meanwhile.
    Ok(State { rows, user: user.floor(), organisation: org.floor() })
}
