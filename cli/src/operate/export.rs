//! The command `export`: reads the rows of the table `rate_limits` page by page, and writes them as JSON or CSV for other programs.

use std::collections::BTreeSet;
use std::io::{self, IsTerminal, Write};
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::SystemTime;

use clap::{Args, ValueEnum};
use serde::Serialize;
use serde_json::{Map, Value, json};
use sqlx::postgres::PgRow;
use sqlx::{AssertSqlSafe, Connection, FromRow, PgConnection};

use crate::text::{escaped, many, moment};
use crate::{CliError, Database, NO_TIMEOUTS, Progress, Result, input, json, output};
use pg_limiter::{CallAt, Error, Item, LimitState, Op, Schema, TransactionLimiter};

pub(crate) async fn run(args: ExportArgs, database: &Database) -> Result<ExitCode> {
    if args.format != Format::Csv {
        CliError::refuse_without("--format csv", "--format json", &[("--no-formulas", args.no_formulas)])?;
    }
    let limits = args.limits.as_deref().map(input::read_limits).transpose()?;
    let running = database.named()?;
    let mut conn = running.connect().await?;
    let schema = running.schema.clone();
    let all_limits = args.limit.is_empty().then_some(None);
    let asked: BTreeSet<Option<&str>> = args.limit.iter().map(|name| Some(name.as_str())).chain(all_limits).collect();

    // On a terminal, the rows themselves show the progress.
    let is_watched = args.output.is_none() && io::stdout().is_terminal();
    let progress = (!is_watched).then(|| Progress::counting("exporting rows"));
    let refused = |error| CliError::refused(error, &schema, &["rate_limits"]);
    // All pages read one snapshot. READ ONLY makes this work on a standby, too.
    let begin = format!("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY; {NO_TIMEOUTS}");
    sqlx::raw_sql(AssertSqlSafe(begin)).execute(&mut conn).await?;
    let moment = moment(now(&mut conn).await?);
    let rate_limits = limits.map(|limits| TransactionLimiter::in_schema(limits, schema.clone()));
    let mut out = None;
    let mut written = 0;
    let mut without_rows = Vec::new();
    for limit in asked {
        let mut last: Option<Row> = None;
        loop {
            let rows = page(&mut conn, &schema, limit, args.key.as_deref(), last.as_ref()).await;
            let mut rows = rows.map_err(|error| refused(Error::from_sql(error, schema.name())))?;
            // Open the file only after the first page: an error must not empty a file that exists.
            if out.is_none() && !(rows.is_empty() && args.must_exist) {
                let headings = columns(&Row::default(), &args);
                let first = if args.format == Format::Csv { csv([headings.keys()])? } else { Vec::new() };
                put(out.insert(open(&args)?), &first, &args)?;
            }
            let (Some(out), false) = (&mut out, rows.is_empty()) else { break };
            if let Some(rate_limits) = &rate_limits {
                // On the first row of each bucket.
                let firsts: Vec<&mut Row> = rows.iter_mut().filter(|row| row.shard == 0).collect();
                let asked = firsts.iter().map(|row| (&*row.name, &*row.key));
                let found = balances(&mut conn, rate_limits, moment, asked).await.map_err(refused)?;
                firsts.into_iter().zip(found).for_each(|(row, state)| row.balance = state.map(|state| state.remaining));
            }
            let lines = rows.iter().map(|row| json::line(&columns(row, &args)) + "\n");
            let bytes = match args.format {
                Format::Json => lines.collect::<String>().into(),
                Format::Csv => csv(rows.iter().map(|row| record(row, &args)))?,
            };
            put(out, &bytes, &args)?;
            written += rows.len() as u64;
            progress.iter().for_each(|progress| progress.add(rows.len()));
            last = rows.pop();
        }
        if last.is_none() {
            without_rows.push(limit);
        }
    }
    sqlx::raw_sql("ROLLBACK").execute(&mut conn).await?;
    conn.close().await?;
    drop(progress);
    let of_key = if args.key.is_some() { " for this key" } else { "" };
    let none = without_rows.iter().map(|limit| match limit {
        Some(limit) => format!("the limit \"{}\" has no row{of_key}", escaped(limit)),
        None if of_key.is_empty() => "the table is empty".to_owned(),
        None => format!("no limit has a row{of_key}"),
    });
    let none = none.collect::<Vec<_>>().join("; ");
    let colon = if none.is_empty() { "" } else { ": " };
    output::note(format_args!("{}{colon}{none}", many(written, "row")));
    Ok(ExitCode::from(u8::from(args.must_exist && !without_rows.is_empty())))
}

/// The balances of buckets, as `peek` returns them: none for a name that is not defined, or that no call could use.
pub(crate) async fn balances<'a>(
    conn: &mut PgConnection,
    rate_limits: &TransactionLimiter,
    moment: SystemTime,
    buckets: impl Iterator<Item = (&'a str, &'a str)>,
) -> Result<Vec<Option<LimitState>>, Error> {
    let peek = |(name, key)| CallAt::new(moment, Op::Peek, Item::new(name, key));
    let decisions = rate_limits.decide_at(conn, &buckets.map(peek).collect::<Vec<_>>()).await?;
    Ok(decisions.into_iter().map(|decision| decision.ok()?.limits().first().cloned()).collect())
}

#[derive(Args, Debug, Default)]
pub(crate) struct ExportArgs {
    /// Output format
    #[arg(long, value_enum, value_name = "FORMAT", default_value = "json")]
    format: Format,
    /// Exit with 1 if no row matches, or none for one of the given limits; if no row matches at all, no file is written
    #[arg(long)]
    must_exist: bool,
    /// Write to this file instead of standard output
    #[arg(long, value_name = "FILE")]
    output: Option<PathBuf>,
    /// Export only this limit; repeat for several limits
    #[arg(long, value_name = "NAME")]
    limit: Vec<String>,
    /// Export only this key, given as it is stored
    #[arg(long, value_name = "KEY")]
    key: Option<String>,
    /// Add the balance of each bucket at the moment of the export, for the limits that this file defines: TOML, or JSON
    /// if its name ends in .json; `-` is standard input
    #[arg(long, value_name = "FILE")]
    limits: Option<PathBuf>,
    /// For CSV that is opened in a spreadsheet: put a ' before names and keys that could be read as formulas
    #[arg(long)]
    no_formulas: bool,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub(crate) struct Row {
    pub(crate) name: String,
    pub(crate) key: String,
    pub(crate) shard: i32,
    pub(crate) shards: i32,
    pub(crate) value: f64,
    pub(crate) ts: i64,
    pub(crate) idle_at: i64,
    pub(crate) detail: Option<Vec<f64>>,
    /// The balance of the whole bucket. Set on its first row only, and only if its limit is known.
    #[serde(skip)]
    pub(crate) balance: Option<f64>,
}

pub(crate) const COLUMNS: &str = "name, key, shard, shards, value, ts, idle_at, detail";

impl FromRow<'_, PgRow> for Row {
    fn from_row(row: &PgRow) -> Result<Self, sqlx::Error> {
        let (name, key, shard, shards, value, ts, idle_at, detail) = FromRow::from_row(row)?;
        Ok(Self { name, key, shard, shards, value, ts, idle_at, detail, balance: None })
    }
}

/// The database's clock, in microseconds since the Unix epoch.
pub(crate) const CLOCK: &str = "(pg_catalog.date_part('epoch', pg_catalog.clock_timestamp()) * 1000000)::bigint";

pub(crate) async fn now(conn: &mut PgConnection) -> Result<i64, sqlx::Error> {
    sqlx::query_scalar(AssertSqlSafe(format!("SELECT {CLOCK}"))).persistent(false).fetch_one(conn).await
}

/// Most rows in memory at once.
const PAGE: usize = 1_000;

/// Reads the rows after this one. The page is empty at the end.
async fn page(
    conn: &mut PgConnection,
    schema: &Schema,
    limit: Option<&str>,
    key: Option<&str>,
    after: Option<&Row>,
) -> Result<Vec<Row>, sqlx::Error> {
    // An unnamed statement is planned for its arguments: NULL filters cost nothing, and a name uses the primary key.
    let sql = format!(
        "SELECT {COLUMNS} FROM {}.rate_limits \
         WHERE (name, key, shard) > ($1, $2, $3) \
           AND ($4::text IS NULL OR name = $4) AND ($5::text IS NULL OR key = $5) \
         ORDER BY name, key, shard LIMIT {PAGE}",
        schema.quoted()
    );
    let (last_name, last_key, shard) = after.map_or(("", "", -1), |row| (&*row.name, &*row.key, row.shard));
    let query = sqlx::query_as(AssertSqlSafe(sql)).bind(last_name).bind(last_key).bind(shard).bind(limit).bind(key);
    query.persistent(false).fetch_all(conn).await
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
enum Format {
    /// One JSON object per line
    #[default]
    Json,
    /// CSV with a header line (RFC 4180)
    Csv,
}

fn open(args: &ExportArgs) -> Result<Box<dyn Write + Send>> {
    let Some(path) = &args.output else { return Ok(Box::new(io::stdout())) };
    let cannot_write = |error| CliError::usage(format!("cannot write {}: {error}", path.display()));
    Ok(Box::new(std::fs::File::create(path).map_err(cannot_write)?))
}

fn put(out: &mut impl Write, bytes: &[u8], args: &ExportArgs) -> Result<()> {
    out.write_all(bytes).map_err(|error| match &args.output {
        None => output::failure(error),
        Some(path) => CliError::failed(format!("cannot write {}: {error}", path.display())),
    })
}

fn csv(records: impl IntoIterator<Item = impl IntoIterator<Item = impl AsRef<[u8]>>>) -> Result<Vec<u8>> {
    let mut csv = csv::Writer::from_writer(Vec::new());
    records.into_iter().try_for_each(|record| csv.write_record(record)).map_err(CliError::failed)?;
    csv.into_inner().map_err(CliError::failed)
}

fn columns(row: &Row, args: &ExportArgs) -> Map<String, Value> {
    // RFC 3339 in UTC, exactly. There is none after the year 9999.
    let time = |micros: i64| jiff::Timestamp::from_microsecond(micros).ok().map(|time| time.to_string());
    let Value::Object(mut columns) = json!(row) else { return Map::new() };
    columns.insert("ts_time".to_owned(), json!(time(row.ts)));
    columns.insert("idle_at_time".to_owned(), json!(time(row.idle_at)));
    if args.limits.is_some() {
        columns.insert("balance".to_owned(), json!(row.balance));
    }
    columns
}

/// A spreadsheet could read a text that begins like this as a formula (OWASP, "CSV Injection").
const FORMULA: [char; 11] = ['=', '+', '-', '@', '\t', '\r', '\n', '＝', '＋', '－', '＠'];

/// The columns of a row as cells of CSV. An array is written as PostgreSQL writes it.
fn record(row: &Row, args: &ExportArgs) -> Vec<String> {
    let cell = |value: &Value| match value {
        Value::Null => String::new(),
        Value::String(text) if args.no_formulas && text.starts_with(FORMULA) => format!("'{text}"),
        Value::String(text) => text.clone(),
        Value::Array(_) => json::line(value).replace('[', "{").replace(']', "}").replace(", ", ","),
        number => json::line(number),
    };
    columns(row, args).values().map(cell).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn objects_have_every_column() {
        let mut row = Row { name: "a".into(), key: "é\"\n\u{9b}".into(), shards: 1, value: -1.5, ..Row::default() };
        (row.ts, row.idle_at) = (1_767_225_600_000_001, i64::MAX);
        (row.detail, row.balance) = (Some(vec![1.0, 0.25]), Some(3.0));
        assert_eq!(
            json::line(&columns(&row, &ExportArgs { limits: Some("limits.toml".into()), ..ExportArgs::default() })),
            "{\"name\": \"a\", \"key\": \"é\\\"\\n\\u009b\", \"shard\": 0, \"shards\": 1, \"value\": -1.5, \
             \"ts\": 1767225600000001, \"idle_at\": 9223372036854775807, \"detail\": [1, 0.25], \
             \"ts_time\": \"2026-01-01T00:00:00.000001Z\", \"idle_at_time\": null, \"balance\": 3}"
        );
    }

    #[test]
    fn only_texts_can_be_formulas() {
        let args = |no_formulas| ExportArgs { no_formulas, ..ExportArgs::default() };
        let row = |key: &str| Row { key: key.to_owned(), value: -1.5, detail: Some(vec![1.0, 0.25]), ..Row::default() };
        for formula in ["=1+1", "+1", "-1", "@a", "\t=1", "\r=1", "\n=1", "＝1"] {
            assert_eq!(record(&row(formula), &args(true))[1], format!("'{formula}"));
            assert_eq!(record(&row(formula), &args(false))[1], formula);
        }
        let cells = record(&row("u1"), &args(true));
        assert_eq!((cells[1].as_str(), cells[4].as_str(), cells[7].as_str()), ("u1", "-1.5", "{1,0.25}"));
    }
}
