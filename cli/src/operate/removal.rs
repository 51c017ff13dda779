//! The commands `reset`, `forget` and `prune`, which remove rows.

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use clap::Args;
use serde_json::json;
use sqlx::{AssertSqlSafe, PgConnection};

use crate::operate::stored::{ExactArgs, Forms};
use crate::text::{escaped, many, quoted};
use crate::{CliError, Database, KeySecretArgs, Progress, Result, input, json, output};
use pg_limiter::{Call, Error, Forgotten, InvalidCall, Item, Limit, Limits, Op};

#[derive(Args, Debug)]
pub(crate) struct ResetArgs {
    /// Name of the limit; its definition is not needed
    name: String,
    /// Key to reset; the empty key is one bucket that all share
    #[arg(default_value = "", conflicts_with = "all_keys")]
    key: String,
    #[command(flatten)]
    exact: ExactArgs,
    /// Reset every key of the limit
    #[arg(long, conflicts_with_all = ["exact", "key_secret_file"])]
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

pub(crate) async fn reset(args: ResetArgs, database: &Database) -> Result<ExitCode> {
    let limits = args.limits.as_deref().map(input::read_limits).transpose()?;
    let is_unknown = limits.is_some_and(|limits| limits.get(&args.name).is_none());
    CliError::refuse_if(is_unknown, InvalidCall::UnknownLimit { limit: args.name.clone() })?;
    let forms = Forms::new(args.key, args.exact, args.secret.read()?);
    // Rejects a name or a key before a connection is made. Removing a row does not depend on the limit.
    let any = Limit::token_bucket(1, Duration::from_secs(1)).build().map_err(CliError::usage)?;
    let call = Call::from(Item::new((&*args.name, any), forms.usual()));
    call.validate(Op::Reset, &Limits::new()).map_err(CliError::usage)?;
    let limiter = database.limiter(Limits::new(), None).await?;
    let progress = Progress::of(format!("resetting the limit \"{}\"", args.name));
    let rows = if args.all_keys {
        limiter.reset_all_keys(&args.name).await?
    } else {
        let key = forms.find(&limiter, &args.name, false).await?;
        let key = forms.stored_key(&args.name, &key);
        // The function in SQL returns the number of rows; `Limiter::reset` does not.
        let sql = format!("SELECT {}.reset($1, $2)", limiter.schema().quoted());
        let reset = async |tx: &mut PgConnection| {
            let query = sqlx::query_scalar(AssertSqlSafe(sql.clone())).bind(&args.name).bind(&key).persistent(false);
            query.fetch_one(tx).await.map_err(|error| Error::from_sql(error, limiter.schema().name()))
        };
        limiter.transaction(reset).await.map(i64::unsigned_abs)?
    };
    drop(progress);
    let ok = rows > 0 || !args.must_exist;
    output::line_if_open(match (rows, args.json) {
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
pub(crate) struct ForgetArgs {
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

pub(crate) async fn forget(args: ForgetArgs, database: &Database) -> Result<()> {
    let limits = args.limits.as_deref().map_or_else(|| Ok(Limits::new()), input::read_limits)?;
    let key_secret = args.secret.read()?;
    let forms = Forms::new(args.key, args.exact, key_secret.clone());
    let limiter = database.limiter(limits, key_secret).await?;
    let progress = Progress::of("deleting what is stored about the key");
    let keys = forms.every(&limiter).await?;
    let mut sums = [0; 4];
    // Every form in a transaction of its own.
    for key in &keys {
        let Forgotten { buckets, jobs, running, answers, .. } = limiter.forget(key).await?;
        sums.iter_mut().zip([buckets, jobs, running, answers]).for_each(|(sum, number)| *sum += number);
    }
    drop(progress);
    let [buckets, jobs, running, answers] = sums;
    let mut fields = json!({"buckets": buckets, "jobs": jobs, "running": running, "answers": answers});
    if let [_, others @ ..] = &keys[..]
        && !others.is_empty()
    {
        output::note(format!("it was also stored as {}", quoted(others)));
        fields["other_keys"] = others.into();
    }
    let [rows, jobs, answers] = [(buckets, "row"), (jobs, "job"), (answers, "answer")].map(|(n, what)| many(n, what));
    let deleted = format!("deleted {rows} of buckets, {jobs} and {answers}");
    output::line(match running {
        _ if args.json => json::line(&fields),
        0 => deleted,
        running => format!("{deleted}; {} still running: repeat this once none is", many(running, "job")),
    })
}

pub(crate) async fn prune(dead_older_than: Option<Duration>, json: bool, database: &Database) -> Result<()> {
    let limiter = database.limiter(Limits::new(), None).await?;
    let progress = Progress::of("removing the rows of idle keys");
    let rows = limiter.prune().await?;
    let mut fields = json!({"ok": true, "rows": rows});
    let mut removed = many(rows, "row");
    if let Some(dead_for) = dead_older_than {
        progress.now("removing dead jobs");
        let jobs = pg_limiter::queue::Queues::new(&limiter).prune_dead(dead_for).await?;
        fields["dead_jobs"] = jobs.into();
        removed += &format!(" and {}", many(jobs, "dead job"));
    }
    drop(progress);
    output::line(if json { json::line(&fields) } else { format!("done, {removed} removed") })
}
