//! `limit`, `check` and `peek`, and for gates `block` and `unblock`.

use std::process::ExitCode;
use std::time::Duration;

use clap::Args;
use serde_json::json;

use crate::limit_args::{LimitArgs, finite};
use crate::operate::stored::{ExactArgs, Forms};
use crate::text;
use crate::{CliError, Database, KeySecretArgs, Progress, Result, json, output};
use pg_limiter::{Balances, Call, Decision, InvalidCall, Item, Kind, Limit, Limiter, Limits, Op, Outcome};

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
    let call = Call::from(Item::new(&*name, forms.usual()).count(0));
    refuse_impossible(Op::Peek, &call, &limits, json)?;
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

/// `limit`, or `check` if that is the operation.
pub(crate) async fn decide(op: Op, args: DecideArgs, database: &Database) -> Result<ExitCode> {
    let DecideArgs { what: PeekArgs { name, key, limit, secret, json }, count, leave, reserve } = args;
    let (limits, secret) = (limit.limits(&name, database).await?, secret.read()?);
    let call = Call::from(Item::new(name, key).count(count).leave(leave.unwrap_or_default()));
    let call = if reserve { call.reserve() } else { call };
    refuse_impossible(op, &call, &limits, json)?;
    let limiter = database.limiter(limits, secret).await?;
    let progress = Progress::of("waiting for the database");
    let decision = if op == Op::Check { limiter.check(call).await? } else { limiter.limit(call).await? };
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
            text::escaped(limit)
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
        (false, Some(key)) => format!("blocked \"{}\" for {}", text::escaped(key), text::wait(rest)),
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
    // A role that blocks may lack the right to read the stored limits: then the function in SQL refuses.
    if let Ok(stored) = stored
        && let Some(kind) = stored.get(&args.name).map(Limit::kind).filter(|kind| *kind != Kind::Gate)
    {
        return Err(CliError::usage(InvalidCall::NotAGate { limit: args.name, kind }));
    }
    let key = forms.find(&limiter, &args.name, notes).await?;
    Ok((limiter, Item::new((args.name, Limit::gate()), key.as_str()), key))
}
