//! The commands on keys: `limit`, `check` and `peek`; for gates `block` and `unblock`; and `reset`, `forget` and `prune`, which remove rows.

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use clap::Args;
use serde_json::json;
use sqlx::{AssertSqlSafe, PgConnection};

use crate::limit_args::{LimitArgs, finite};
use crate::operate::stored::{ExactArgs, Forms};
use crate::text::{self, escaped, many, quoted};
use crate::{CliError, Database, KeySecretArgs, Progress, Result, input, json, output};
use pg_limiter::{Balances, Call, Decision, Error, InvalidCall, Item, Kind, Limit, Limiter, Limits, Op, Outcome};

#[derive(Args, Debug)]
pub(crate) struct PeekArgs {
    /// Name of the limit
    name: String,
    /// Key of the bucket, such as the id of a user; the empty key is one bucket that all share
    #[arg(default_value = "")]
    key: String,
    #[command(flatten)]
    limit: LimitArgs,
    #[command(flatten)]
    secret: KeySecretArgs,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

#[derive(Args, Debug)]
pub(crate) struct DecideArgs {
    #[command(flatten)]
    what: PeekArgs,
    /// Number of tokens
    #[arg(long, value_name = "TOKENS", default_value = "1", value_parser = finite, allow_negative_numbers = true)]
    count: f64,
    /// Headroom: allow the call only if at least so many tokens are left in the bucket after it
    #[arg(
        long, value_name = "TOKENS", value_parser = finite, allow_negative_numbers = true, conflicts_with = "reserve"
    )]
    leave: Option<f64>,
    /// Take the tokens even if they are not available yet, and print how long to wait for them
    #[arg(long)]
    reserve: bool,
}

pub(crate) async fn peek(args: PeekArgs, exact: ExactArgs, database: &Database) -> Result<()> {
    let PeekArgs { name, key: given, limit, secret, json } = args;
    let (limits, secret) = (limit.limits(&name, database).await?, secret.read()?);
    let forms = Forms::new(given.clone(), exact, secret.clone());
    refuse_impossible(Op::Peek, &Item::new(&*name, forms.usual()).count(0).into(), &limits, json)?;
    let is_gate = limits.get(&name).is_some_and(|limit| limit.kind() == Kind::Gate);
    let limiter = database.limiter(limits, secret).await?;
    let progress = Progress::of("waiting for the database");
    let key = forms.find(&limiter, &name, false).await?;
    let item = Item::new(&*name, &*key).count(0);
    let text = match is_gate {
        true => of_gate(limiter.is_blocked(item).await?, json),
        false => of_bucket(&limiter.peek(item).await?, Some(key).filter(|key| *key != given), json),
    };
    drop(progress);
    output::line(text)
}

/// `other_key`: the form of the key that is stored, if it is not the given one.
fn of_bucket(balances: &Balances, other_key: Option<String>, json: bool) -> String {
    let window_ends_in = balances.limits().iter().find_map(|state| state.window_ends_in);
    if json {
        let mut fields = json!({
            "value": balances.remaining(),
            "full_in_ms": balances.full_in().map(json::milliseconds),
            "window_ends_in_ms": window_ends_in.map(json::milliseconds),
        });
        if let Some(key) = other_key {
            fields["key"] = key.into();
        }
        return json::line(&fields);
    }
    let full_in = balances.full_in().filter(|time| !time.is_zero());
    let full = full_in.map_or_else(|| ", full".to_owned(), |time| format!(", full in {}", text::wait(time)));
    let window = window_ends_in.map(|time| format!(", window ends in {}", text::wait(time))).unwrap_or_default();
    format!("{} left{full}{window}", text::tokens(balances.remaining()))
}

fn of_gate(rest: Option<Duration>, json: bool) -> String {
    match (json, rest) {
        (true, rest) => json::line(&json!({"blocked_ms": rest.map(json::milliseconds)})),
        (false, Some(rest)) => format!("blocked for {}", text::wait(rest)),
        (false, None) => "open".to_owned(),
    }
}

pub(crate) async fn decide(op: Op, args: DecideArgs, database: &Database) -> Result<ExitCode> {
    let DecideArgs { what: PeekArgs { name, key, limit, secret, json }, count, leave, reserve } = args;
    let (limits, secret) = (limit.limits(&name, database).await?, secret.read()?);
    let call = Call::from(Item::new(name, key).count(count).leave(leave.unwrap_or_default()));
    let call = if reserve { call.reserve() } else { call };
    refuse_impossible(op, &call, &limits, json)?;
    let limiter = database.limiter(limits, secret).await?;
    let progress = Progress::of("waiting for the database");
    let decision = if op == Op::Check { limiter.check(call).await } else { limiter.limit(call).await };
    let decision = decision.map_err(CliError::of_tokens)?;
    drop(progress);
    output::line_if_open(if json { json::line(&json::decision(&decision)) } else { human(&decision) })?;
    Ok(ExitCode::from(u8::from(decision.is_denied())))
}

/// Rejects a call that can never be allowed, before a connection is made.
fn refuse_impossible(op: Op, call: &Call, limits: &Limits, json: bool) -> Result<()> {
    let Err(error) = call.validate(op, limits) else { return Ok(()) };
    let message = match &error {
        InvalidCall::NeedsLease { limit } => format!(
            "the limit \"{}\" counts slots, which a command holds while it runs: use `pg-limiter exec`",
            escaped(limit)
        ),
        error => error.to_string(),
    };
    if json {
        output::line_if_open(json::line(&json!({"error": error.code(), "message": message})))?;
    }
    Err(CliError::usage(message))
}

fn human(decision: &Decision) -> String {
    let left = format!("{} left", text::tokens(decision.remaining()));
    match decision.outcome() {
        Outcome::Allowed => format!("allowed, {left}"),
        Outcome::Reserved { wait } => format!("reserved, wait {}, {left}", text::wait(wait)),
        Outcome::Denied { retry_after } => format!("denied, retry after {}, {left}", text::wait(retry_after)),
        other => format!("{other:?}, {left}"),
    }
}

#[derive(Args, Debug)]
pub(crate) struct GateArgs {
    /// Name of the gate; its definition is not needed
    name: String,
    /// Key of the gate, such as an address
    key: String,
    #[command(flatten)]
    exact: ExactArgs,
    #[command(flatten)]
    secret: KeySecretArgs,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

pub(crate) async fn block(args: GateArgs, length: Duration, database: &Database) -> Result<()> {
    let (json, given) = (args.json, args.key.clone());
    let (limiter, gate, key) = gate(args, database, true).await?;
    let rest = limiter.block(gate, length).await?;
    output::line(match (json, Some(&key).filter(|key| **key != given)) {
        (true, None) => json::line(&json!({"blocked_ms": json::milliseconds(rest)})),
        (true, Some(key)) => json::line(&json!({"blocked_ms": json::milliseconds(rest), "key": key})),
        (false, None) => format!("blocked for {}", text::wait(rest)),
        (false, Some(key)) => format!("blocked \"{}\" for {}", escaped(key), text::wait(rest)),
    })
}

pub(crate) async fn unblock(args: GateArgs, database: &Database) -> Result<()> {
    let json = args.json;
    let (limiter, gate, _) = gate(args, database, false).await?;
    let rest = limiter.is_blocked(gate.clone()).await?;
    limiter.unblock(gate).await?;
    output::line(match (json, rest) {
        (true, rest) => json::line(&json!({"was_blocked_ms": rest.map(json::milliseconds)})),
        (false, Some(rest)) => format!("unblocked; {} of the block were left", text::wait(rest)),
        (false, None) => "nothing to unblock: the key is not blocked".to_owned(),
    })
}

/// The key of a gate, in the form that is stored, as an item and as a text.
async fn gate(args: GateArgs, database: &Database, notes: bool) -> Result<(Limiter, Item, String)> {
    let key_secret = args.secret.read()?;
    let forms = Forms::new(args.key, args.exact, key_secret.clone());
    let limiter = database.limiter(Limits::new(), key_secret).await?;
    let _progress = Progress::of("waiting for the database");
    let mut tx = limiter.pool().begin().await?;
    let stored = Limits::stored_in(&mut *tx, limiter.schema()).await;
    tx.rollback().await?;
    let key = forms.find(&limiter, &args.name, notes).await?;
    let gate = Item::new((&*args.name, Limit::gate()), key.as_str());
    // A role that blocks may lack the right to read the stored limits: then the function in SQL refuses. A block outlasts a change
    // of the limit to another kind.
    if let Ok(stored) = stored
        && let Some(kind) = stored.get(&args.name).map(Limit::kind).filter(|kind| *kind != Kind::Gate)
        && (notes || limiter.is_blocked(gate.clone()).await?.is_none())
    {
        return Err(CliError::usage(InvalidCall::NotAGate { limit: args.name, kind }));
    }
    Ok((limiter, gate, key))
}

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
        let of = limiter.forget(key).await?;
        sums.iter_mut().zip([of.buckets, of.jobs, of.running, of.answers]).for_each(|(sum, number)| *sum += number);
    }
    drop(progress);
    let [buckets, jobs, running, answers] = sums;
    let mut fields = json!({"buckets": buckets, "jobs": jobs, "running": running, "answers": answers});
    if let Some(others) = keys.get(1..).filter(|others| !others.is_empty()) {
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
