//! `reset`.

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use clap::Args;

use crate::cli::database::Database;
use crate::cli::error::CliError;
use crate::cli::key_secret::KeySecretArgs;
use crate::cli::{input, output};
use crate::{InvalidCall, Limit, Limiter, LimiterConfig, Limits};

#[derive(Args, Debug)]
pub(super) struct ResetArgs {
    /// The limit's name; its definition is not needed
    name: String,
    /// Which key; the empty key is the one shared bucket
    #[arg(default_value = "", conflicts_with = "all_keys")]
    key: String,
    /// Forget every key of the limit
    #[arg(long)]
    all_keys: bool,
    /// Refuse a name that is not in this limits file
    #[arg(long, value_name = "FILE")]
    limits: Option<PathBuf>,
    #[command(flatten)]
    secret: KeySecretArgs,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

pub(super) async fn run(args: ResetArgs, database: Database) -> Result<ExitCode, CliError> {
    if let Some(path) = &args.limits
        && input::read_limits(path)?.get(&args.name).is_none()
    {
        return Err(InvalidCall::UnknownLimit { limit: args.name }.into());
    }
    // A row is forgotten in the same way whatever its limit.
    let any = Limit::token_bucket(1, Duration::from_secs(1)).build().map_err(CliError::usage)?;
    let key_secret = args.secret.read()?;
    let running = database.start().await?;
    let pool = running.ready_pool(1).await?;
    let config = LimiterConfig { schema: running.schema().clone(), key_secret, ..LimiterConfig::default() };
    let limiter = Limiter::with_config(pool.clone(), Limits::new(), config);
    let result = if args.all_keys {
        limiter.reset_all_keys(&args.name).await.map(Some)
    } else {
        limiter.reset(((args.name.as_str(), any), args.key)).await.map(|()| None)
    };
    pool.close().await;
    output::line(match (result?, args.json) {
        (None, true) => "{\"ok\": true}".to_owned(),
        (Some(rows), true) => format!("{{\"ok\": true, \"rows\": {rows}}}"),
        (None, false) => "done".to_owned(),
        (Some(1), false) => "done, 1 row removed".to_owned(),
        (Some(rows), false) => format!("done, {rows} rows removed"),
    })?;
    Ok(ExitCode::SUCCESS)
}
