//! The commands `reset`, `forget` and `prune`, which remove rows.

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use clap::Args;
use serde_json::json;
use sqlx::AssertSqlSafe;

use crate::database::Database;
use crate::error::CliError;
use crate::key_secret::KeySecretArgs;
use crate::output::{self, Progress};
use crate::stored::{ExactArgs, Forms, Rows};
use crate::text::{escaped, many};
use crate::{input, json};
use pg_limiter::queue::Queues;
use pg_limiter::{Call, Error, Forgotten, InvalidCall, Item, KeySecret, Limit, Limiter, Limits, Op, Schema};

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

pub(super) async fn reset(args: ResetArgs, database: Database) -> Result<ExitCode, CliError> {
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
    let rows = Rows { pool: limiter.pool(), schema: &running.schema, secret: key_secret.as_ref() };
    let result = async {
        if args.all_keys {
            return Ok(limiter.reset_all_keys(&args.name).await?);
        }
        let key = forms.find(rows, &args.name, false).await?;
        let key = stored_key(&args.name, key, key_secret.as_ref())?;
        Ok(reset_key(&limiter, &running.schema, &args.name, &key).await?)
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

#[derive(Args, Debug)]
pub(super) struct ForgetArgs {
    /// Key to forget, in all limits, queues and answers
    key: String,
    #[command(flatten)]
    exact: ExactArgs,
    /// Return the tokens of cancelled jobs to the limits in this file: TOML, or JSON if its name ends in .json
    #[arg(long, value_name = "FILE")]
    limits: Option<PathBuf>,
    #[command(flatten)]
    secret: KeySecretArgs,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

pub(super) async fn forget(args: ForgetArgs, database: Database) -> Result<(), CliError> {
    let limits = args.limits.as_deref().map_or_else(|| Ok(Limits::new()), input::read_limits)?;
    let key_secret = args.secret.read()?;
    let running = database.start().await?;
    let limiter = running.limiter(limits, key_secret.clone()).await?;
    let progress = Progress::of("deleting what is stored about the key");
    let rows = Rows { pool: limiter.pool(), schema: &running.schema, secret: key_secret.as_ref() };
    let result = forget_all(&limiter, Forms::new(args.key, args.exact), rows).await;
    drop(progress);
    limiter.pool().close().await;
    let (forgotten, others) = result?;
    if !others.is_empty() {
        let others: Vec<_> = others.iter().map(|form| format!("\"{}\"", escaped(form))).collect();
        output::note(format!("it was also stored as {}", others.join(", ")));
    }
    output::line(if args.json { to_json(&forgotten, &others) } else { human(&forgotten) })
}

/// Forgets every form of the key that is stored, each in a transaction of its own. Returns the forms other than the given one.
async fn forget_all(limiter: &Limiter, forms: Forms, rows: Rows<'_>) -> Result<(Forgotten, Vec<String>), CliError> {
    let mut keys = forms.every(rows).await?;
    let mut forgotten = limiter.forget(keys.remove(0)).await?;
    for key in &keys {
        let Forgotten { buckets, jobs, running, answers, .. } = limiter.forget(key).await?;
        forgotten.buckets += buckets;
        forgotten.jobs += jobs;
        forgotten.running += running;
        forgotten.answers += answers;
    }
    Ok((forgotten, keys))
}

fn to_json(forgotten: &Forgotten, others: &[String]) -> String {
    let Forgotten { buckets, jobs, running, answers, .. } = forgotten;
    let mut fields = json!({"buckets": buckets, "jobs": jobs, "running": running, "answers": answers});
    if !others.is_empty() {
        fields["other_keys"] = others.into();
    }
    json::line(&fields)
}

fn human(forgotten: &Forgotten) -> String {
    let deleted = format!(
        "deleted {}, {} and {}",
        many(forgotten.buckets, "row") + " of buckets",
        many(forgotten.jobs, "job"),
        many(forgotten.answers, "answer")
    );
    match forgotten.running {
        0 => deleted,
        1 => format!("{deleted}; 1 job is running: repeat this once it has ended"),
        running => format!("{deleted}; {running} jobs are running: repeat this once they have ended"),
    }
}

#[derive(Args, Debug)]
pub(super) struct PruneArgs {
    /// Also remove jobs, of all queues, that have been dead for at least this long, such as 30d
    #[arg(long, value_name = "LENGTH", value_parser = humantime::parse_duration)]
    dead_older_than: Option<Duration>,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

pub(super) async fn prune(args: PruneArgs, database: Database) -> Result<(), CliError> {
    let running = database.start().await?;
    let limiter = running.limiter(Limits::new(), None).await?;
    let result = prune_all(&limiter, args.dead_older_than).await;
    limiter.pool().close().await;
    output::line(match (result?, args.json) {
        ((rows, None), true) => json::line(&json!({"ok": true, "rows": rows})),
        ((rows, Some(jobs)), true) => json::line(&json!({"ok": true, "rows": rows, "dead_jobs": jobs})),
        ((rows, None), false) => format!("done, {} removed", many(rows, "row")),
        ((rows, Some(jobs)), false) => format!("done, {} and {} removed", many(rows, "row"), many(jobs, "dead job")),
    })
}

/// Returns the number of rows removed, and of dead jobs if they are pruned, too.
async fn prune_all(limiter: &Limiter, dead_for: Option<Duration>) -> Result<(u64, Option<u64>), Error> {
    let progress = Progress::of("removing the rows of idle keys");
    let rows = limiter.prune().await?;
    let Some(dead_for) = dead_for else { return Ok((rows, None)) };
    progress.now("removing dead jobs");
    Ok((rows, Some(Queues::new(limiter).prune_dead(dead_for).await?)))
}
