//! The command `forget`.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::Args;
use serde_json::json;

use crate::database::Database;
use crate::error::CliError;
use crate::key_secret::KeySecretArgs;
use crate::progress::Progress;
use crate::{input, json, output};
use pg_limiter::{Forgotten, Limits};

#[derive(Args, Debug)]
pub(super) struct ForgetArgs {
    /// Key to forget, in all limits, queues and answers
    key: String,
    /// Return the tokens of cancelled jobs to the limits in this file: TOML, or JSON if its name ends in .json
    #[arg(long, value_name = "FILE")]
    limits: Option<PathBuf>,
    #[command(flatten)]
    secret: KeySecretArgs,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

pub(super) async fn run(args: ForgetArgs, database: Database) -> Result<ExitCode, CliError> {
    let limits = args.limits.as_deref().map_or_else(|| Ok(Limits::new()), input::read_limits)?;
    let key_secret = args.secret.read()?;
    let running = database.start().await?;
    let limiter = running.limiter(limits, key_secret).await?;
    let progress = Progress::of("deleting what is stored about the key");
    let result = limiter.forget(args.key).await;
    drop(progress);
    limiter.pool().close().await;
    let forgotten = result?;
    output::line(if args.json { to_json(&forgotten) } else { human(&forgotten) })?;
    Ok(ExitCode::SUCCESS)
}

fn to_json(forgotten: &Forgotten) -> String {
    let Forgotten { buckets, jobs, running, answers, .. } = forgotten;
    json::line(&json!({"buckets": buckets, "jobs": jobs, "running": running, "answers": answers}))
}

fn human(forgotten: &Forgotten) -> String {
    let many = |count: u64, one: &str| format!("{count} {one}{}", if count == 1 { "" } else { "s" });
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
