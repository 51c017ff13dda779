//! The command `limits`: the limits that are stored in the database.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Args, Subcommand};
use serde_json::{Map, Value, json};
use sqlx::{AssertSqlSafe, Connection, PgConnection};

use crate::database::{Database, Running};
use crate::error::CliError;
use crate::text::{aligned, describe, escaped, shown};
use crate::{input, json, output};
use pg_limiter::{Error, Limits, Schema};

#[derive(Debug, Subcommand)]
pub(super) enum LimitsCommand {
    /// Print the stored limits
    Show(ShowArgs),
    /// Print what `apply` would change, and exit with 1 if it would change anything
    Diff(FileArgs),
    /// Store the limits of a file, all or none: they apply from the next call from SQL on
    Apply(FileArgs),
}

#[derive(Args, Debug)]
pub(super) struct ShowArgs {
    /// Print every definition that there has been of this limit, the last one first
    #[arg(long, value_name = "NAME")]
    history: Option<String>,
    /// Print JSON: a limits file, which `apply` reads
    #[arg(long, conflicts_with = "history")]
    json: bool,
}

#[derive(Args, Debug)]
pub(super) struct FileArgs {
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

/// The changes of `apply`.
#[derive(Debug, Default)]
struct Changes {
    defined: Vec<String>,
    undefined: Vec<String>,
}

pub(super) async fn run(command: LimitsCommand, database: Database) -> Result<ExitCode, CliError> {
    match command {
        LimitsCommand::Show(args) => show(args, &database.named()?).await.map(|()| ExitCode::SUCCESS),
        LimitsCommand::Diff(args) => change(args, &database.named()?, false).await,
        LimitsCommand::Apply(args) => change(args, &database.named()?, true).await,
    }
}

async fn show(args: ShowArgs, running: &Running) -> Result<(), CliError> {
    let mut conn = running.connect().await?;
    if let Some(name) = args.history {
        let lines = history(&mut conn, &running.schema, &name).await?;
        if lines.is_empty() {
            return Err(CliError::failed(format!("the limit \"{}\" has never been stored", escaped(&name))));
        }
        return output::lines(lines);
    }
    let limits = Limits::stored_in(&mut conn, &running.schema).await?;
    if args.json {
        let limits: Map<String, Value> = limits.iter().map(|(name, limit)| (name.to_owned(), json!(limit))).collect();
        output::line(json::line(&json!({"limits": limits})))
    } else if limits.iter().next().is_none() {
        output::line("no limits are stored")
    } else {
        output::lines(limits.iter().map(|(name, limit)| describe(name, limit)))
    }
}

/// A line for each definition of a limit: its time, its author and its rule.
async fn history(conn: &mut PgConnection, schema: &Schema, name: &str) -> Result<Vec<String>, CliError> {
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
    let rows: Result<Vec<(String, String, String)>, _> =
        sqlx::query_as(AssertSqlSafe(sql)).persistent(false).bind(name).fetch_all(conn).await;
    let rows = rows.map_err(|error| Error::from_sql(error, schema.name()))?;
    let cells: Vec<Vec<String>> = rows
        .into_iter()
        .map(|(at, by, rule)| vec![format!("{at} UTC"), shown(&by, 30).to_string(), shown(&rule, 200).to_string()])
        .collect();
    Ok(aligned(&cells, &[0, 1, 2]))
}

async fn change(args: FileArgs, running: &Running, is_kept: bool) -> Result<ExitCode, CliError> {
    let limits = input::read_limits(&args.file)?;
    let mut conn = running.connect().await?;
    let mut tx = conn.begin().await?;
    let former = Limits::stored_in(&mut *tx, &running.schema).await?;
    let changes = apply(&mut tx, &running.schema, &limits, &former, args.undefine_others).await?;
    if is_kept {
        tx.commit().await?;
    } else {
        tx.rollback().await?;
    }
    let is_same = changes.defined.is_empty() && changes.undefined.is_empty();
    if args.json {
        output::line(json::line(&json!({"defined": changes.defined, "undefined": changes.undefined})))?;
    } else if is_same {
        output::line("the stored limits are those of the file")?;
    } else {
        output::lines(changes.lines(&limits, &former))?;
    }
    Ok(ExitCode::from(u8::from(!is_same && !is_kept)))
}

async fn apply(
    conn: &mut PgConnection,
    schema: &Schema,
    limits: &Limits,
    former: &Limits,
    undefine_others: bool,
) -> Result<Changes, CliError> {
    let mut changes = Changes { defined: limits.store_in(conn, schema).await?, undefined: Vec::new() };
    let others = former.iter().map(|(name, _)| name).filter(|name| undefine_others && limits.get(name).is_none());
    for name in others {
        let sql = format!("SELECT {}.undefine($1)", schema.quoted());
        let ended = sqlx::query(AssertSqlSafe(sql)).persistent(false).bind(name).execute(&mut *conn).await;
        ended.map_err(|error| Error::from_sql(error, schema.name()))?;
        changes.undefined.push(name.to_owned());
    }
    Ok(changes)
}

impl Changes {
    /// A line for each limit that is new (`+`), changed (`-` and `+`) or ended (`-`).
    fn lines(&self, limits: &Limits, former: &Limits) -> Vec<String> {
        let line = |sign: char, limits: &Limits, name: &str| {
            limits.get(name).map(|limit| format!("{sign} {}: {limit}", shown(name, 60)))
        };
        let of_defined = self.defined.iter().flat_map(|name| [line('-', former, name), line('+', limits, name)]);
        let of_undefined = self.undefined.iter().map(|name| line('-', former, name));
        of_defined.chain(of_undefined).flatten().collect()
    }
}
