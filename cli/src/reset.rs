//! The command `reset`.

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use clap::Args;
use serde_json::json;
use sqlx::AssertSqlSafe;

use crate::database::Database;
use crate::error::CliError;
use crate::key_secret::KeySecretArgs;
use crate::progress::Progress;
use crate::stored::{ExactArgs, Forms, Rows};
use crate::text::{escaped, many};
use crate::{input, json, output};
use pg_limiter::{Call, Error, InvalidCall, Item, KeySecret, Limit, Limiter, Limits, Op, Schema};

#[derive(Args, Debug)]
pub(super) struct ResetArgs {
    /// Name of the limit; its definition is not needed
    name: String,
    /// Key to reset; the empty key is one bucket that all share
    #[arg(default_value = "", conflicts_with = "all_keys")]
    key: String,
    #[command(flatten)]
    exact: ExactArgs,
    /// Reset every key of the limit
    #[arg(long)]
    all_keys: bool,
    /// Reject a name that this limits file does not define
    #[arg(long, value_name = "FILE")]
    limits: Option<PathBuf>,
    #[command(flatten)]
    secret: KeySecretArgs,
    /// Exit with 1 if no row was removed
    #[arg(long)]
    must_exist: bool,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// Checks the name and the key, and returns the key as it is stored.
fn stored_key(name: &str, key: String, secret: Option<&KeySecret>) -> Result<String, CliError> {
    // Removing a row does not depend on the limit.
    let any = Limit::token_bucket(1, Duration::from_secs(1)).build().map_err(CliError::usage)?;
    Call::from(Item::new((name, any), key.as_str())).validate(Op::Reset, &Limits::new())?;
    Ok(secret.map_or(key.clone(), |secret| secret.stored_key(name, &key)))
}

/// Shows its source, so that a conflict is recognised and the transaction retried.
#[derive(Debug, thiserror::Error)]
enum ResetError {
    #[error(transparent)]
    Limit(#[from] Error),
    #[error(transparent)]
    Database(#[from] sqlx::Error),
}

/// Resets one key with the SQL function, which returns the number of rows; [`Limiter::reset`] does not.
async fn reset_key(limiter: &Limiter, schema: &Schema, name: &str, key: &str) -> Result<u64, Error> {
    let sql = format!("SELECT {}.reset($1, $2)", schema.quoted());
    let result = limiter
        .transaction(async |tx| {
            let query = sqlx::query_scalar(AssertSqlSafe(sql.clone())).bind(name).bind(key).persistent(false);
            Ok::<i64, ResetError>(query.fetch_one(tx).await?)
        })
        .await;
    match result {
        Ok(rows) => Ok(rows.unsigned_abs()),
        Err(ResetError::Limit(error)) => Err(error),
        Err(ResetError::Database(error)) => Err(Error::from_sql(error, schema.name())),
    }
}

pub(super) async fn run(args: ResetArgs, database: Database) -> Result<ExitCode, CliError> {
    if let Some(path) = &args.limits
        && input::read_limits(path)?.get(&args.name).is_none()
    {
        return Err(InvalidCall::UnknownLimit { limit: args.name }.into());
    }
    let key_secret = args.secret.read()?;
    let forms = Forms::new(args.key, args.exact);
    stored_key(&args.name, forms.usual().to_owned(), None)?; // Rejects it before a connection is made.
    let running = database.start().await?;
    let limiter = running.limiter(Limits::new(), None).await?;
    let progress = Progress::of(format!("resetting the limit \"{}\"", args.name));
    let rows = Rows { pool: limiter.pool(), schema: running.schema(), secret: key_secret.as_ref() };
    let result = async {
        if args.all_keys {
            return Ok(limiter.reset_all_keys(&args.name).await?);
        }
        let key = forms.find(rows, &args.name, false).await?;
        let key = stored_key(&args.name, key, key_secret.as_ref())?;
        Ok(reset_key(&limiter, running.schema(), &args.name, &key).await?)
    };
    let result: Result<u64, CliError> = result.await;
    limiter.pool().close().await;
    drop(progress);
    let rows = result?;
    let ok = rows > 0 || !args.must_exist;
    output::line(match (rows, args.json) {
        (rows, true) => json::line(&json!({"ok": ok, "rows": rows})),
        (0, false) => {
            let key = if args.all_keys { "" } else { " for this key, so its bucket is full" };
            format!("nothing to reset: the limit \"{}\" has no row{key}", escaped(&args.name))
        }
        (rows, false) => format!("done, {} removed", many(rows, "row")),
    })?;
    Ok(ExitCode::from(u8::from(!ok)))
}
