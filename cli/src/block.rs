//! `block` and `unblock`.

use std::time::Duration;

use clap::Args;
use serde_json::json;

use crate::database::Database;
use crate::error::CliError;
use crate::key_secret::KeySecretArgs;
use crate::length::parse_length;
use crate::progress::Progress;
use crate::stored::{ExactArgs, Forms, Rows};
use crate::{json, output, text};
use pg_limiter::{Error, Item, Limit, Limiter, Limits};

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
    let rows = Rows { pool: limiter.pool(), schema: running.schema(), secret: key_secret.as_ref() };
    let result = async {
        let key = forms.find(rows, &args.name, notes).await?;
        Ok((run(limiter.clone(), Item::new((args.name, Limit::gate()), key.as_str())).await?, key))
    };
    let result = result.await;
    limiter.pool().close().await;
    result
}
