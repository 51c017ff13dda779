//! The command `limits`: the limits that are stored in the database.

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use clap::{Args, Subcommand};
use serde_json::{Map, Value, json};
use sqlx::{AssertSqlSafe, Connection, PgConnection, Postgres, Transaction};
use tokio::time::timeout;

use crate::database::read_limits;
use crate::limit_args::stored_names;
use crate::text::{aligned, describe, escaped, shown};
use crate::{CliError, Database, Progress, Result, Running, input, json, output};
use pg_limiter::{Error, Limit, Limits, Schema};

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

pub(crate) async fn run(command: LimitsCommand, database: &Database) -> Result<ExitCode> {
    match command {
        LimitsCommand::Show { history: None, json } => show(json, &database.named()?).await.map(|()| ExitCode::SUCCESS),
        LimitsCommand::Show { history: Some(name), .. } => {
            history(&name, &database.named()?).await.map(|()| ExitCode::SUCCESS)
        }
        LimitsCommand::Diff(args) => change(args, &database.named()?, false).await,
        LimitsCommand::Apply(args) => change(args, &database.named()?, true).await,
    }
}

async fn show(json: bool, running: &Running) -> Result<()> {
    let limits = read_limits(running.connect().await?, &running.schema).await?;
    if json {
        let limits: Map<String, Value> = limits.iter().map(|(name, limit)| (name.to_owned(), json!(limit))).collect();
        output::line(json::line(&json!({"limits": limits})))
    } else if limits.iter().next().is_none() {
        output::line("no limits are stored")
    } else {
        output::lines(limits.iter().map(|(name, limit)| describe(name, limit)))
    }
}

async fn history(name: &str, running: &Running) -> Result<()> {
    let schema = &running.schema;
    let sql = format!(
        "SELECT to_char(d.defined_at AT TIME ZONE 'UTC', 'YYYY-MM-DD HH24:MI:SS'), d.defined_by, \
           CASE WHEN d.kind IS NOT NULL THEN jsonb_strip_nulls(jsonb_build_object( \
             'kind', part[1], \
             'rate', CASE WHEN part[1] NOT IN ('concurrency', 'gate') THEN d.rate END, \
             'period', CASE WHEN part[1] LIKE ANY ('{{token_bucket,fixed_window,sliding_window}}') THEN d.period || 'us' END, \
             'capacity', CASE part[1] WHEN 'concurrency' THEN d.rate WHEN 'gate' THEN NULL ELSE d.capacity END, \
             'max_reserved', CASE WHEN part[1] <> 'gate' THEN d.max_reserved END, \
             'start', d.start || 'us', 'resolution', d.resolution, 'shards', CASE WHEN d.shards > 1 THEN d.shards END, \
             'every', part[2] || ' ' || part[3], 'zone', nullif(part[4], 'UTC'), \
             'anchor', nullif(part[5], CASE part[3] WHEN 'week' THEN '1970-01-05T00:00:00' ELSE '1970-01-01T00:00:00' END), \
             'lease', CASE part[1] WHEN 'concurrency' THEN d.period || 'us' END))::text END \
         FROM {}.definitions AS d, string_to_array(d.kind, ' ') AS part WHERE d.name = $1 ORDER BY d.version DESC",
        schema.quoted()
    );
    let mut conn = running.connect().await?;
    let mut tx = conn.begin().await?;
    let rows = sqlx::query_as(AssertSqlSafe(sql)).persistent(false).bind(name).fetch_all(&mut *tx).await;
    let rows: Vec<(String, String, Option<String>)> = rows.map_err(|error| Error::from_sql(error, schema.name()))?;
    tx.rollback().await?;
    if rows.is_empty() {
        let stored = stored_names(&read_limits(conn, schema).await?);
        return Err(CliError::failed(format!("the limit \"{}\" has never been stored; {stored}", escaped(name))));
    }
    // As a limits file has it. A later release may have written what this one cannot read.
    let rule = |json: &Option<String>| match json {
        None => "undefined".to_owned(),
        Some(json) => serde_json::from_str(json).map_or_else(|_| json.clone(), |limit: Limit| limit.to_string()),
    };
    let cells = rows.iter().map(|(at, by, json)| vec![format!("{at} UTC"), shown(by, 30), shown(&rule(json), 200)]);
    output::lines(aligned(&cells.collect::<Vec<_>>(), &[0, 1, 2]))
}

/// Without these, a definition that another session has not committed would be waited for without end.
const BOUNDS: &str = "BEGIN; SET LOCAL lock_timeout = '5s'; SET LOCAL statement_timeout = '10s'";
/// How long the statements of a whole file may take, and the commit, for which a synchronous standby may be waited for.
const PATIENCE: (Duration, Duration) = (Duration::from_secs(60), Duration::from_secs(10));

/// Returns the names of the limits that `apply` would define. It only reads: for standbys, and for roles that may not write.
async fn compare(limits: &Limits, former: &Limits, tx: &mut PgConnection) -> Result<Vec<String>, sqlx::Error> {
    let differing: Vec<_> = limits.iter().filter(|(name, limit)| former.get(name) != Some(limit)).collect();
    // `apply` refuses a zone that the server does not know.
    for zone in differing.iter().filter_map(|(_, limit)| limit.zone()) {
        let sql = "SELECT pg_catalog.timezone($1, timestamp '2000-01-01')::text";
        sqlx::query(sql).persistent(false).bind(zone).execute(&mut *tx).await?;
    }
    Ok(differing.into_iter().map(|(name, _)| name.to_owned()).collect())
}

async fn commit(tx: Transaction<'_, Postgres>, schema: &Schema) -> Result<()> {
    let ended = timeout(PATIENCE.1, tx.commit()).await;
    let why = match ended.map(|ended| ended.map_err(|error| Error::from_sql(error, schema.name()))) {
        Ok(Err(Error::Unavailable { source })) => Error::database_message(&source),
        Ok(ended) => return Ok(ended?),
        Err(_) => format!("no answer to the commit within {:?}; is a synchronous standby away?", PATIENCE.1),
    };
    let advice = "run `pg-limiter limits diff` to see whether they are";
    Err(CliError::failed(format!("the limits may or may not be stored: {why}; {advice}")))
}

async fn change(args: FileArgs, running: &Running, is_kept: bool) -> Result<ExitCode> {
    let (limits, schema) = (input::read_limits(&args.file)?, &running.schema);
    let failed = |error| Error::from_sql(error, schema.name());
    let mut conn = running.connect().await?;
    let progress = Progress::of("comparing the limits");
    let changing = async {
        let mut tx = conn.begin_with(BOUNDS).await.map_err(failed)?;
        let former = Limits::stored_in(&mut *tx, schema).await?;
        let defined = match is_kept {
            true => limits.store_in(&mut tx, schema).await?,
            false => compare(&limits, &former, &mut tx).await.map_err(failed)?,
        };
        let others = former.iter().filter(|(name, _)| args.undefine_others && limits.get(name).is_none());
        let undefined: Vec<String> = others.map(|(name, _)| name.to_owned()).collect();
        for name in undefined.iter().filter(|_| is_kept) {
            let sql = format!("SELECT {}.undefine($1)", schema.quoted());
            let ended = sqlx::query(AssertSqlSafe(sql)).persistent(false).bind(name).execute(&mut *tx).await;
            ended.map_err(failed)?;
        }
        Ok((tx, former, defined, undefined))
    };
    let late = |_| CliError::failed(format!("the database did not answer within {:?}; nothing was stored", PATIENCE.0));
    let changed = timeout(PATIENCE.0, changing).await.map_err(late)?;
    let (tx, former, defined, undefined) = changed.map_err(|error| match error {
        Error::Conflict { source } => CliError::failed(format!(
            "another transaction changes the stored limits: {}; nothing was stored: run this again when it has ended",
            Error::database_message(&source)
        )),
        error => error.into(),
    })?;
    if is_kept {
        commit(tx, schema).await?;
    }
    drop(progress);
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
