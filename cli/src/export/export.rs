use std::io::{self, IsTerminal};
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::SystemTime;

use clap::Args;
use sqlx::{Connection, PgConnection};

use crate::database::Database;
use crate::error::CliError;
use crate::export::row::{Format, Pages, Row, Writer, now};
use crate::input;
use crate::output::{self, Progress};
use crate::replay::moment;
use crate::text::{escaped, grouped};
use pg_limiter::{CallAt, Error, Item, Op, TransactionLimiter};

pub(crate) async fn run(args: ExportArgs, database: Database) -> Result<ExitCode, CliError> {
    let limits = args.limits.as_deref().map(input::read_limits).transpose()?;
    let running = database.named()?;
    let mut conn = running.connect().await?;
    let schema = running.schema.clone();
    let mut asked: Vec<Option<&str>> = args.limit.iter().map(|name| Some(name.as_str())).collect();
    asked.sort_unstable();
    asked.dedup();
    if asked.is_empty() {
        asked.push(None); // All limits.
    }

    // On a terminal, the rows themselves show the progress.
    let is_watched = args.output.is_none() && io::stdout().is_terminal();
    let progress = (!is_watched).then(|| Progress::counting("exporting rows"));
    let refused = |error| CliError::refused(error, &schema, &["rate_limits"]);
    // All pages read one snapshot. READ ONLY makes this work on a standby, too.
    sqlx::raw_sql("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY").execute(&mut conn).await?;
    let moment = moment(now(&mut conn).await?);
    let rate_limits = limits.map(|limits| TransactionLimiter::in_schema(limits, schema.clone()));
    let open = || Writer::open(args.output.as_deref(), args.format, rate_limits.is_some(), args.no_formulas);
    let mut writer = None;
    let mut written = 0;
    let mut without_rows = Vec::new();
    for limit in asked {
        let before = written;
        let mut pages = Pages { schema: &schema, limit, key: args.key.as_deref(), last: None };
        loop {
            let mut rows =
                pages.next(&mut conn).await.map_err(|error| refused(Error::from_sql(error, schema.name())))?;
            if rows.is_empty() && args.must_exist {
                break;
            }
            // Open the file only after the first page: an error must not empty a file that exists.
            let writer = match &mut writer {
                Some(writer) => writer,
                None => writer.insert(open()?),
            };
            if rows.is_empty() {
                break;
            }
            if let Some(rate_limits) = &rate_limits {
                add_balances(&mut rows, rate_limits, moment, &mut conn).await.map_err(refused)?;
            }
            for row in &rows {
                writer.write(row)?;
            }
            written += rows.len() as u64;
            progress.iter().for_each(|progress| progress.add(rows.len()));
        }
        if written == before {
            without_rows.push(limit);
        }
    }
    sqlx::raw_sql("ROLLBACK").execute(&mut conn).await?;
    conn.close().await?;
    writer.map_or(Ok(()), Writer::finish)?;
    drop(progress);
    let rows = match written {
        1 => "1 row".to_owned(),
        rows => format!("{} rows", grouped(rows)),
    };
    let none: Vec<String> = without_rows.iter().map(|limit| without(*limit, args.key.is_some())).collect();
    let colon = if none.is_empty() { "" } else { ": " };
    output::note(format_args!("{rows}{colon}{}", none.join("; ")));
    Ok(ExitCode::from(u8::from(args.must_exist && !without_rows.is_empty())))
}

/// The note for a limit (or `None`: any limit) without a row.
fn without(limit: Option<&str>, of_a_key: bool) -> String {
    match (limit, of_a_key) {
        (None, false) => "the table is empty".to_owned(),
        (None, true) => "no limit has a row for this key".to_owned(),
        (Some(limit), false) => format!("the limit \"{}\" has no row", escaped(limit)),
        (Some(limit), true) => format!("the limit \"{}\" has no row for this key", escaped(limit)),
    }
}

/// Adds the balance, as `peek` returns it, to the first row of each bucket.
async fn add_balances(
    rows: &mut [Row],
    rate_limits: &TransactionLimiter,
    moment: SystemTime,
    conn: &mut PgConnection,
) -> Result<(), Error> {
    let firsts: Vec<&mut Row> = rows.iter_mut().filter(|row| row.shard == 0).collect();
    let peek = |row: &&mut Row| CallAt::new(moment, Op::Check, Item::new(row.name.as_str(), row.key.as_str()).count(0));
    let asked: Vec<CallAt> = firsts.iter().map(peek).collect();
    for (row, decision) in firsts.into_iter().zip(rate_limits.decide_at(conn, &asked).await?) {
        // No balance for a name that the file does not define, or that no call could use.
        row.balance = decision.ok().map(|decision| decision.remaining());
    }
    Ok(())
}

#[derive(Args, Debug)]
pub(crate) struct ExportArgs {
    /// Output format
    #[arg(long, value_enum, value_name = "FORMAT", default_value = "json")]
    pub(super) format: Format,
    /// Exit with 1 if no row matches, or none for one of the given limits; if no row matches at all, no file is written
    #[arg(long)]
    pub(super) must_exist: bool,
    /// Write to this file instead of standard output
    #[arg(long, value_name = "FILE")]
    pub(super) output: Option<PathBuf>,
    /// Export only this limit; repeat for several limits
    #[arg(long, value_name = "NAME")]
    pub(super) limit: Vec<String>,
    /// Export only this key, given as it is stored
    #[arg(long, value_name = "KEY")]
    pub(super) key: Option<String>,
    /// Add the balance of each bucket at the moment of the export, for the limits that this file defines: TOML, or JSON
    /// if its name ends in .json; `-` is standard input
    #[arg(long, value_name = "FILE")]
    pub(super) limits: Option<PathBuf>,
    /// For CSV that is opened in a spreadsheet: put a ' before names and keys that could be read as formulas
    #[arg(long)]
    pub(super) no_formulas: bool,
}
