//! The rows of the table `rate_limits`: reads them page by page, and writes them as JSON or CSV.

use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};

use clap::ValueEnum;
use jiff::Timestamp;
use serde_json::json;
use sqlx::postgres::PgRow;
use sqlx::{AssertSqlSafe, FromRow, PgConnection};

use crate::error::CliError;
use crate::text::plain;
use crate::{json, output};
use pg_limiter::Schema;

#[derive(Clone, Debug, PartialEq)]
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
    pub(crate) balance: Option<f64>,
}

pub(crate) const COLUMNS: &str = "name, key, shard, shards, value, ts, idle_at, detail";

impl FromRow<'_, PgRow> for Row {
    /// Reads [`COLUMNS`].
    fn from_row(row: &PgRow) -> Result<Self, sqlx::Error> {
        let (name, key, shard, shards, value, ts, idle_at, detail) = FromRow::from_row(row)?;
        Ok(Self { name, key, shard, shards, value, ts, idle_at, detail, balance: None })
    }
}

/// The database's clock, in microseconds since the Unix epoch.
pub(crate) const CLOCK: &str = "(date_part('epoch', clock_timestamp()) * 1000000)::bigint";

/// Reads the database's clock.
pub(crate) async fn now(conn: &mut PgConnection) -> Result<i64, sqlx::Error> {
    sqlx::query_scalar(AssertSqlSafe(format!("SELECT {CLOCK}"))).persistent(false).fetch_one(conn).await
}

/// Formats a time as RFC 3339 in UTC, exactly. Returns `None` after the year 9999.
pub(crate) fn time(micros: i64) -> Option<String> {
    Timestamp::from_microsecond(micros).ok().map(|time| time.to_string())
}

pub(crate) fn numbers(counts: &[f64]) -> String {
    counts.iter().map(|count| plain(*count)).collect::<Vec<_>>().join(",")
}

/// Most rows in memory at once.
const PAGE: usize = 1_000;

pub(super) struct Pages<'a> {
    pub(super) schema: &'a Schema,
    pub(super) limit: Option<&'a str>,
    pub(super) key: Option<&'a str>,
    /// The last row of the previous page.
    pub(super) last: Option<(String, String, i32)>,
}

impl Pages<'_> {
    /// Returns the next page; it is empty at the end.
    pub(super) async fn next(&mut self, conn: &mut PgConnection) -> Result<Vec<Row>, sqlx::Error> {
        // An unnamed statement is planned for its arguments: NULL filters cost nothing, and a name uses the primary key.
        let sql = format!(
            "SELECT {COLUMNS} FROM {}.rate_limits \
             WHERE (name, key, shard) > ($1, $2, $3) \
               AND ($4::text IS NULL OR name = $4) AND ($5::text IS NULL OR key = $5) \
             ORDER BY name, key, shard LIMIT {PAGE}",
            self.schema.quoted()
        );
        let (name, key, shard) = match &self.last {
            Some((name, key, shard)) => (name.as_str(), key.as_str(), *shard),
            None => ("", "", -1),
        };
        let query = sqlx::query_as(AssertSqlSafe(sql)).bind(name).bind(key).bind(shard).bind(self.limit).bind(self.key);
        let rows: Vec<Row> = query.persistent(false).fetch_all(conn).await?;
        if let Some(row) = rows.last() {
            self.last = Some((row.name.clone(), row.key.clone(), row.shard));
        }
        Ok(rows)
    }
}

const HEADINGS: [&str; 10] =
    ["name", "key", "shard", "shards", "value", "ts", "idle_at", "detail", "ts_time", "idle_at_time"];
const BALANCE: &str = "balance";

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(super) enum Format {
    /// One JSON object per line
    Json,
    /// CSV with a header line (RFC 4180)
    Csv,
}

pub(super) struct Writer {
    format: Written,
    /// Whether the balance is written.
    with_balance: bool,
    no_formulas: bool,
    /// The file, or `None` for standard output.
    path: Option<PathBuf>,
}

type Output = Box<dyn Write + Send>;

enum Written {
    Json(Output),
    Csv(Box<csv::Writer<Output>>),
}

impl Writer {
    pub(super) fn open(
        path: Option<&Path>,
        format: Format,
        with_balance: bool,
        no_formulas: bool,
    ) -> Result<Self, CliError> {
        let out: Output = match path {
            None => Box::new(BufWriter::new(io::stdout())),
            Some(path) => Box::new(BufWriter::new(
                File::create(path)
                    .map_err(|error| CliError::usage(format!("cannot write {}: {error}", path.display())))?,
            )),
        };
        let format = match format {
            Format::Json => Written::Json(out),
            Format::Csv => Written::Csv(Box::new(csv::Writer::from_writer(out))),
        };
        let mut writer = Self { format, with_balance, no_formulas, path: path.map(Path::to_owned) };
        let headings = HEADINGS.into_iter().chain(with_balance.then_some(BALANCE));
        let result = match &mut writer.format {
            Written::Json(_) => Ok(()),
            Written::Csv(csv) => csv.write_record(headings).map_err(of_csv),
        };
        result.map_err(|error| writer.failure(error))?;
        Ok(writer)
    }

    pub(super) fn write(&mut self, row: &Row) -> Result<(), CliError> {
        let Self { with_balance, no_formulas, .. } = *self;
        let result = match &mut self.format {
            Written::Json(out) => writeln!(out, "{}", object(row, with_balance)),
            Written::Csv(csv) => csv.write_record(record(row, with_balance, no_formulas)).map_err(of_csv),
        };
        result.map_err(|error| self.failure(error))
    }

    pub(super) fn finish(mut self) -> Result<(), CliError> {
        let result = match &mut self.format {
            Written::Json(out) => out.flush(),
            Written::Csv(csv) => csv.flush(),
        };
        result.map_err(|error| self.failure(error))
    }

    fn failure(&self, error: io::Error) -> CliError {
        match &self.path {
            None => output::failure(error),
            Some(path) => CliError::failed(format!("cannot write {}: {error}", path.display())),
        }
    }
}

/// Unwraps the I/O error: its kind distinguishes a closed pipe from other failures.
fn of_csv(error: csv::Error) -> io::Error {
    match error.into_kind() {
        csv::ErrorKind::Io(error) => error,
        other => io::Error::other(format!("{other:?}")),
    }
}

fn object(row: &Row, with_balance: bool) -> String {
    let [name, key, shard, shards, value, ts, idle_at, detail, ts_time, idle_at_time] = HEADINGS;
    let mut object = json!({
        name: row.name,
        key: row.key,
        shard: row.shard,
        shards: row.shards,
        value: row.value,
        ts: row.ts,
        idle_at: row.idle_at,
        detail: row.detail,
        ts_time: time(row.ts),
        idle_at_time: time(row.idle_at),
    });
    if with_balance {
        object[BALANCE] = json!(row.balance);
    }
    json::line(&object)
}

fn record(row: &Row, with_balance: bool, no_formulas: bool) -> Vec<String> {
    let text = |text: &str| if no_formulas && is_formula(text) { format!("'{text}") } else { text.to_owned() };
    let mut cells = vec![
        text(&row.name),
        text(&row.key),
        row.shard.to_string(),
        row.shards.to_string(),
        plain(row.value),
        row.ts.to_string(),
        row.idle_at.to_string(),
        row.detail.as_deref().map_or_else(String::new, |counts| format!("{{{}}}", numbers(counts))),
        time(row.ts).unwrap_or_default(),
        time(row.idle_at).unwrap_or_default(),
    ];
    if with_balance {
        cells.push(row.balance.map(plain).unwrap_or_default());
    }
    cells
}

/// Whether a spreadsheet could read the text as a formula (OWASP, "CSV Injection").
fn is_formula(text: &str) -> bool {
    text.starts_with(['=', '+', '-', '@', '\t', '\r', '\n', '＝', '＋', '－', '＠'])
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(key: &str) -> Row {
        Row {
            name: "a".to_owned(),
            key: key.to_owned(),
            shard: 0,
            shards: 1,
            value: -1.5,
            ts: 1_767_225_600_000_001,
            idle_at: i64::MAX,
            detail: Some(vec![1.0, 0.25]),
            balance: Some(3.0),
        }
    }

    #[test]
    fn objects_have_every_column() {
        assert_eq!(
            object(&row("é\"\n\u{9b}"), true),
            "{\"name\": \"a\", \"key\": \"é\\\"\\n\\u009b\", \"shard\": 0, \"shards\": 1, \"value\": -1.5, \
             \"ts\": 1767225600000001, \"idle_at\": 9223372036854775807, \"detail\": [1, 0.25], \
             \"ts_time\": \"2026-01-01T00:00:00.000001Z\", \"idle_at_time\": null, \"balance\": 3}"
        );
    }

    #[test]
    fn only_texts_can_be_formulas() {
        for formula in ["=1+1", "+1", "-1", "@a", "\t=1", "\r=1", "\n=1", "＝1"] {
            assert_eq!(record(&row(formula), false, true)[1], format!("'{formula}"));
            assert_eq!(record(&row(formula), false, false)[1], formula);
        }
        let cells = record(&row("u1"), true, true);
        assert_eq!((cells[1].as_str(), cells[4].as_str(), cells[7].as_str()), ("u1", "-1.5", "{1,0.25}"));
    }
}
