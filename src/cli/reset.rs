//! The command `reset`.

use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use clap::Args;
use sqlx::{AssertSqlSafe, PgConnection};

use crate::call::{Op, Resolved};
use crate::cli::database::Database;
use crate::cli::error::CliError;
use crate::cli::key_secret::KeySecretArgs;
use crate::cli::text::escaped;
use crate::cli::{input, output};
use crate::limiter::Statement;
use crate::sql::Statements;
use crate::{InvalidCall, Item, KeySecret, Limit, Limiter, LimiterConfig, Limits};

#[derive(Args, Debug)]
pub(super) struct ResetArgs {
    /// Name of the limit; its definition is not needed
    name: String,
    /// Key to reset; the empty key is one bucket that all share
    #[arg(default_value = "", conflicts_with = "all_keys")]
    key: String,
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

/// Resets one key with the SQL function, which returns the number of rows; [`Limiter::reset`] does not.
struct ResetKey {
    name: Arc<str>,
    /// The key as it is stored.
    key: Arc<str>,
}

impl ResetKey {
    fn new(name: &str, key: String, secret: Option<&KeySecret>) -> Result<Self, CliError> {
        // Removing a row does not depend on the limit.
        let any = Limit::token_bucket(1, Duration::from_secs(1)).build().map_err(CliError::usage)?;
        let call = Resolved::new(Op::Reset, Item::new((name, any), key).into(), &Limits::new(), secret)?;
        let bucket = call.buckets().into_iter().next().ok_or(InvalidCall::Empty)?;
        Ok(Self { name: bucket.0, key: bucket.1 })
    }
}

impl Statement for ResetKey {
    type Output = u64;

    async fn run(&self, connection: &mut PgConnection, statements: &Statements) -> Result<u64, sqlx::Error> {
        let sql = format!("SELECT {}.rate_limit_reset($1, $2)", statements.schema.quoted());
        let query = sqlx::query_scalar(AssertSqlSafe(sql)).bind(&*self.name).bind(&*self.key).persistent(false);
        let rows: i64 = query.fetch_one(connection).await?;
        Ok(rows.unsigned_abs())
    }
}

pub(super) async fn run(args: ResetArgs, database: Database) -> Result<ExitCode, CliError> {
    if let Some(path) = &args.limits
        && input::read_limits(path)?.get(&args.name).is_none()
    {
        return Err(InvalidCall::UnknownLimit { limit: args.name }.into());
    }
    let key_secret = args.secret.read()?;
    let one_key = if args.all_keys { None } else { Some(ResetKey::new(&args.name, args.key, key_secret.as_ref())?) };
    let running = database.start().await?;
    let pool = running.ready_pool(1).await?;
    let config = LimiterConfig { schema: running.schema().clone(), ..LimiterConfig::default() };
    let limiter = Limiter::with_config(pool.clone(), Limits::new(), config);
    let result = match one_key {
        None => limiter.reset_all_keys(&args.name).await,
        Some(one_key) => limiter.own_transaction(one_key).await,
    };
    pool.close().await;
    let rows = result?;
    let ok = rows > 0 || !args.must_exist;
    output::line(match (rows, args.json) {
        (rows, true) => format!("{{\"ok\": {ok}, \"rows\": {rows}}}"),
        (0, false) => {
            let key = if args.all_keys { "" } else { " for this key, so its bucket is full" };
            format!("nothing to reset: the limit \"{}\" has no row{key}", escaped(&args.name))
        }
        (1, false) => "done, 1 row removed".to_owned(),
        (rows, false) => format!("done, {rows} rows removed"),
    })?;
    Ok(ExitCode::from(u8::from(!ok)))
}
