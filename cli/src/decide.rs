//! `limit`, `check` and `peek`, and for gates `block` and `unblock`.

use std::process::ExitCode;
use std::time::Duration;

use clap::Args;
use serde_json::json;

use crate::database::Database;
use crate::error::CliError;
use crate::json;
use crate::key_secret::KeySecretArgs;
use crate::limit_args::{LimitArgs, finite};
use crate::output::{self, Progress};
use crate::stored::{ExactArgs, Forms, Rows};
use crate::text::{self, parse_length};
use pg_limiter::{Call, Decision, Error, Item, KeySecret, Kind, Limit, Limiter, Limits, Op, Outcome};

#[derive(Args, Debug)]
pub(super) struct PeekArgs {
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
pub(super) struct PeekKeyArgs {
    #[command(flatten)]
    what: PeekArgs,
    #[command(flatten)]
    exact: ExactArgs,
}

#[derive(Args, Debug)]
pub(super) struct DecideArgs {
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

pub(super) async fn peek(args: PeekKeyArgs, database: Database) -> Result<(), CliError> {
    let PeekKeyArgs { what: PeekArgs { name, key, limit, secret, json }, exact } = args;
    let (limits, secret) = (limit.limits(&name, &database).await?, secret.read()?);
    let (given, forms) = (key.clone(), Forms::new(key, exact));
    let schema = database.schema.clone();
    let find = async |limiter: &Limiter| {
        let rows = Rows { pool: limiter.pool(), schema: &schema, secret: secret.as_ref() };
        let key = forms.find(rows, &name, false).await?;
        Ok::<_, CliError>(Item::new(&*name, key).count(0))
    };
    let call = Call::from(Item::new(&*name, forms.usual()).count(0));
    let config = (limits.clone(), secret.clone());
    if limits.get(&name).is_some_and(|limit| limit.kind() == Kind::Gate) {
        let look = async |limiter: Limiter, _| {
            let gate = find(&limiter).await?;
            Ok::<_, CliError>(limiter.is_blocked(gate).await?)
        };
        let rest = ask(config, (Op::Peek, call), json, database, look).await?;
        return show_gate(rest, json);
    }
    let look = async |limiter: Limiter, _| {
        let item = find(&limiter).await?;
        let key = item.key().as_str().to_owned();
        Ok::<_, CliError>((limiter.peek(item).await?, key))
    };
    let (balances, key) = ask(config, (Op::Peek, call), json, database, look).await?;
    let value = balances.remaining();
    let window_ends_in = balances.limits().iter().find_map(|state| state.window_ends_in);
    output::line(if json {
        let milliseconds = |time: Option<Duration>| time.map(json::milliseconds);
        let mut fields = json!({
            "value": value,
            "full_in_ms": milliseconds(balances.full_in()),
            "window_ends_in_ms": milliseconds(window_ends_in),
        });
        if key != given {
            fields["key"] = key.into();
        }
        json::line(&fields)
    } else {
        let full = match balances.full_in() {
            Some(Duration::ZERO) | None => ", full".to_owned(),
            Some(time) => format!(", full in {}", text::wait(time)),
        };
        let window = window_ends_in.map(|time| format!(", window ends in {}", text::wait(time))).unwrap_or_default();
        format!("{}{full}{window}", left(value))
    })
}

fn show_gate(rest: Option<Duration>, json: bool) -> Result<(), CliError> {
    output::line(match (json, rest) {
        (true, rest) => json::line(&json!({"blocked_ms": rest.map(json::milliseconds)})),
        (false, Some(rest)) => format!("blocked for {}", text::wait(rest)),
        (false, None) => "open".to_owned(),
    })
}

/// `limit`, or `check` if that is the operation.
pub(super) async fn decide(op: Op, args: DecideArgs, database: Database) -> Result<ExitCode, CliError> {
    let DecideArgs { what: PeekArgs { name, key, limit, secret, json }, count, leave, reserve } = args;
    let (limits, secret) = (limit.limits(&name, &database).await?, secret.read()?);
    let mut call = Call::from(Item::new(name, key).count(count).leave(leave.unwrap_or_default()));
    if reserve {
        call = call.reserve();
    }
    let how = async |limiter: Limiter, call| match op {
        Op::Check => limiter.check(call).await,
        _ => limiter.limit(call).await,
    };
    let decision = ask((limits, secret), (op, call), json, database, how).await?;
    let code = ExitCode::from(u8::from(decision.is_denied()));
    // The exit code stays the same if standard output is closed.
    match output::line(if json { json::decision(&decision) } else { human(&decision) }) {
        Ok(()) | Err(CliError::OutputClosed) => Ok(code),
        Err(error) => Err(error),
    }
}

async fn ask<T, E>(
    (limits, key_secret): (Limits, Option<KeySecret>),
    (op, call): (Op, Call),
    json: bool,
    database: Database,
    how: impl AsyncFnOnce(Limiter, Call) -> Result<T, E>,
) -> Result<T, CliError>
where
    CliError: From<E>,
{
    // Reject a call that can never be allowed without connecting to the database.
    if let Err(error) = call.validate(op, &limits) {
        if json {
            output::line(json::impossible(&error))?;
        }
        return Err(error.into());
    }
    let running = database.start().await?;
    let limiter = running.limiter(limits, key_secret).await?;
    let progress = Progress::of("waiting for the database");
    let result = how(limiter.clone(), call).await;
    drop(progress);
    limiter.pool().close().await;
    Ok(result?)
}

fn human(decision: &Decision) -> String {
    let left = left(decision.remaining());
    match decision.outcome() {
        Outcome::Allowed => format!("allowed, {left}"),
        Outcome::Reserved { wait } => format!("reserved, wait {}, {left}", text::wait(wait)),
        Outcome::Denied { retry_after } => {
            format!("denied, retry after {}, {left}", text::wait(retry_after))
        }
        other => format!("{other:?}, {left}"),
    }
}

fn left(value: f64) -> String {
    format!("{} left", text::tokens(value))
}

#[derive(Args, Debug)]
pub(super) struct UnblockArgs {
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

#[derive(Args, Debug)]
pub(super) struct BlockArgs {
    #[command(flatten)]
    what: UnblockArgs,
    /// How long to block the key, such as 90s, 1h or 7d. A block that lasts longer stays
    #[arg(value_name = "LENGTH", value_parser = parse_length)]
    length: Duration,
}

pub(super) async fn block(args: BlockArgs, database: Database) -> Result<(), CliError> {
    let (json, given) = (args.what.json, args.what.key.clone());
    let run = async |limiter: Limiter, gate| limiter.block(gate, args.length).await;
    let (rest, key) = on_gate(args.what, database, true, run).await?;
    let other = Some(&key).filter(|key| **key != given);
    output::line(match (json, other) {
        (true, None) => json::line(&json!({"blocked_ms": json::milliseconds(rest)})),
        (true, Some(key)) => json::line(&json!({"blocked_ms": json::milliseconds(rest), "key": key})),
        (false, None) => format!("blocked for {}", text::wait(rest)),
        (false, Some(key)) => format!("blocked \"{}\" for {}", text::escaped(key), text::wait(rest)),
    })
}

pub(super) async fn unblock(args: UnblockArgs, database: Database) -> Result<(), CliError> {
    let json = args.json;
    let run = async |limiter: Limiter, gate: Item| {
        let rest = limiter.is_blocked(gate.clone()).await?;
        limiter.unblock(gate).await.map(|()| rest)
    };
    let (rest, _) = on_gate(args, database, false, run).await?;
    output::line(match (json, rest) {
        (true, rest) => json::line(&json!({"was_blocked_ms": rest.map(json::milliseconds)})),
        (false, Some(rest)) => format!("unblocked; {} of the block were left", text::wait(rest)),
        (false, None) => "nothing to unblock: the key is not blocked".to_owned(),
    })
}

/// Runs an operation on the key in the form that is stored, and returns that form.
async fn on_gate<T>(
    args: UnblockArgs,
    database: Database,
    notes: bool,
    run: impl AsyncFnOnce(Limiter, Item) -> Result<T, Error>,
) -> Result<(T, String), CliError> {
    let key_secret = args.secret.read()?;
    let forms = Forms::new(args.key, args.exact);
    let running = database.start().await?;
    let limiter = running.limiter(Limits::new(), key_secret.clone()).await?;
    let _progress = Progress::of("waiting for the database");
    let rows = Rows { pool: limiter.pool(), schema: &running.schema, secret: key_secret.as_ref() };
    let result = async {
        let key = forms.find(rows, &args.name, notes).await?;
        Ok((run(limiter.clone(), Item::new((args.name, Limit::gate()), key.as_str())).await?, key))
    };
    let result = result.await;
    limiter.pool().close().await;
    result
}
