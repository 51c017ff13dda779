//! The command `limits`: the limits that are stored in the database.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Args, Subcommand};
use serde_json::{Map, Value, json};
use sqlx::{AssertSqlSafe, Connection};

use crate::limit_args::stored_names;
use crate::text::{aligned, describe, escaped, shown};
use crate::{CliError, Database, Result, Running, input, json, output};
use pg_limiter::{Error, Limits};

#[derive(Debug, Subcommand)]
pub(crate) enum LimitsCommand {
    /// Print the stored limits
    Show {
        /// Print every definition that there has been of this limit, the last one first
        #[arg(long, value_name = "NAME")]
        history: Option<String>,
        /// Print JSON: a limits file, which `apply` reads
        #[arg(long, conflicts_with = "history")]
        json: bool,
    },
    /// Print what `apply` would change, and exit with 1 if it would change anything
    Diff(FileArgs),
    /// Store the limits of a file, all or none: they apply from the next call from SQL on
    Apply(FileArgs),
}

#[derive(Args, Debug)]
pub(crate) struct FileArgs {
    /// Limits file: TOML, or JSON if its name ends in .json; `-` is standard input
    #[arg(value_name = "FILE")]
    file: PathBuf,
    /// Also end the stored limits that the file does not define: calls that name them fail
    #[arg(long)]
    undefine_others: bool,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

pub(crate) async fn run(command: LimitsCommand, database: Database) -> Result<ExitCode> {
    match command {
        LimitsCommand::Show { history: None, json } => show(json, &database.named()?).await?,
        LimitsCommand::Show { history: Some(name), .. } => history(&name, &database.named()?).await?,
        LimitsCommand::Diff(args) => return change(args, &database.named()?, false).await,
        LimitsCommand::Apply(args) => return change(args, &database.named()?, true).await,
    }
    Ok(ExitCode::SUCCESS)
}

async fn show(json: bool, running: &Running) -> Result<()> {
    let mut conn = running.connect().await?;
    let limits = Limits::stored_in(&mut conn, &running.schema).await?;
    if json {
        let limits: Map<String, Value> = limits.iter().map(|(name, limit)| (name.to_owned(), json!(limit))).collect();
        output::line(json::line(&json!({"limits": limits})))
    } else if limits.iter().next().is_none() {
        output::line("no limits are stored")
    } else {
        output::lines(limits.iter().map(|(name, limit)| describe(name, limit)))
    }
}

/// Prints a line for each definition of a limit: its time, its author and its rule.
async fn history(name: &str, running: &Running) -> Result<()> {
    let schema = &running.schema;
    let sql = format!(
        "SELECT to_char(d.defined_at AT TIME ZONE 'UTC', 'YYYY-MM-DD HH24:MI:SS'), d.defined_by, \
           CASE WHEN d.kind IS NULL THEN 'undefined' ELSE concat_ws(', ', d.kind, \
             CASE WHEN d.kind <> 'gate' THEN d.rate || ' per ' || d.period * interval '1 microsecond' END, \
             'capacity ' || d.capacity, 'max_reserved ' || d.max_reserved, \
             'start ' || d.start * interval '1 microsecond', 'resolution ' || d.resolution, \
             CASE WHEN d.shards > 1 THEN 'shards ' || d.shards END) END \
         FROM {}.definitions AS d WHERE d.name = $1 ORDER BY d.version DESC",
        schema.quoted()
    );
    let mut conn = running.connect().await?;
    let rows = sqlx::query_as(AssertSqlSafe(sql)).persistent(false).bind(name).fetch_all(&mut conn).await;
    let rows: Vec<(String, String, String)> = rows.map_err(|error| Error::from_sql(error, schema.name()))?;
    if rows.is_empty() {
        let stored = stored_names(&Limits::stored_in(&mut conn, schema).await?);
        return Err(CliError::failed(format!("the limit \"{}\" has never been stored; {stored}", escaped(name))));
    }
    let cells = rows.iter().map(|(at, by, rule)| vec![format!("{at} UTC"), shown(by, 30), shown(rule, 200)]);
    output::lines(aligned(&cells.collect::<Vec<_>>(), &[0, 1, 2]))
}

async fn change(args: FileArgs, running: &Running, is_kept: bool) -> Result<ExitCode> {
    let limits = input::read_limits(&args.file)?;
    let mut conn = running.connect().await?;
    let mut tx = conn.begin().await?;
    let former = Limits::stored_in(&mut *tx, &running.schema).await?;
    let defined = limits.store_in(&mut tx, &running.schema).await?;
    let others = former.iter().map(|(name, _)| name).filter(|name| args.undefine_others && limits.get(name).is_none());
    let undefined: Vec<&str> = others.collect();
    for name in &undefined {
        let sql = format!("SELECT {}.undefine($1)", running.schema.quoted());
        let ended = sqlx::query(AssertSqlSafe(sql)).persistent(false).bind(name).execute(&mut *tx).await;
        ended.map_err(|error| Error::from_sql(error, running.schema.name()))?;
    }
    let ended = if is_kept { tx.commit().await } else { tx.rollback().await };
    ended?;
    let is_same = defined.is_empty() && undefined.is_empty();
    if args.json {
        output::line_if_open(json::line(&json!({"defined": defined, "undefined": undefined})))?;
    } else if is_same {
        output::line_if_open("the stored limits are those of the file")?;
    } else {
        // A line for each limit that is new (`+`), changed (`-` and `+`) or ended (`-`).
        let line = |sign: char, limits: &Limits, name: &str| {
            limits.get(name).map(|limit| format!("{sign} {}: {limit}", shown(name, 60)))
        };
        let of_defined = defined.iter().flat_map(|name| [line('-', &former, name), line('+', &limits, name)]);
        let of_undefined = undefined.iter().map(|name| line('-', &former, name));
        output::lines_if_open(of_defined.chain(of_undefined).flatten())?;
    }
    Ok(ExitCode::from(u8::from(!is_same && !is_kept)))
}
