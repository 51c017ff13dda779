//! The command `forget`.

use std::path::PathBuf;

use clap::Args;
use serde_json::json;

use crate::database::Database;
use crate::error::CliError;
use crate::key_secret::KeySecretArgs;
use crate::progress::Progress;
use crate::stored::{ExactArgs, Forms, Rows};
use crate::text::{escaped, many};
use crate::{input, json, output};
use pg_limiter::{Forgotten, Limiter, Limits};

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

pub(super) async fn run(args: ForgetArgs, database: Database) -> Result<(), CliError> {
    let limits = args.limits.as_deref().map_or_else(|| Ok(Limits::new()), input::read_limits)?;
    let key_secret = args.secret.read()?;
    let running = database.start().await?;
    let limiter = running.limiter(limits, key_secret.clone()).await?;
    let progress = Progress::of("deleting what is stored about the key");
    let rows = Rows { pool: limiter.pool(), schema: running.schema(), secret: key_secret.as_ref() };
    let result = forget(&limiter, Forms::new(args.key, args.exact), rows).await;
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
async fn forget(limiter: &Limiter, forms: Forms, rows: Rows<'_>) -> Result<(Forgotten, Vec<String>), CliError> {
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
