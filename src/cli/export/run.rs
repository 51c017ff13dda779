use std::process::ExitCode;

use sqlx::{Connection, PgConnection, Row as _};

use crate::call::{Call, Item, Op, Resolved};
use crate::cli::database::Database;
use crate::cli::error::CliError;
use crate::cli::export::args::ExportArgs;
use crate::cli::export::pages::Pages;
use crate::cli::export::row::Row;
use crate::cli::export::writer::Writer;
use crate::cli::text::{escaped, grouped};
use crate::cli::{input, output};
use crate::error::told;
use crate::sql::{Batch, Names, Statements, decide};
use crate::{Error, Limits, Schema};

pub(in crate::cli) async fn run(args: ExportArgs, database: Database) -> Result<ExitCode, CliError> {
    let limits = args.limits.as_deref().map(input::read_limits).transpose()?;
    let running = database.named()?;
    let mut conn = running.connect().await?;
    let schema = running.schema().clone();
    let mut asked: Vec<Option<&str>> = args.limit.iter().map(|name| Some(name.as_str())).collect();
    asked.sort_unstable();
    asked.dedup();
    if asked.is_empty() {
        asked.push(None); // All limits.
    }

    let refused = |error| refusal(error, &schema);
    // All pages read one snapshot. READ ONLY makes this work on a standby, too.
    sqlx::raw_sql("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY").execute(&mut conn).await?;
    let moment = now(&mut conn).await?;
    let statements = Statements::new(schema.clone(), Names::new(true));
    let open = || Writer::open(args.output.as_deref(), args.format, limits.is_some(), args.no_formulas);
    let mut writer = None;
    let mut written = 0;
    let mut without_rows = Vec::new();
    for limit in asked {
        let before = written;
        let mut pages = Pages::new(&schema, limit, args.key.as_deref());
        loop {
            let mut rows = pages.next(&mut conn).await.map_err(refused)?;
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
            if let Some(limits) = &limits {
                add_balances(&mut rows, limits, moment, &mut conn, &statements).await.map_err(refused)?;
            }
            for row in &rows {
                writer.write(row)?;
            }
            written += rows.len() as u64;
        }
        if written == before {
            without_rows.push(limit);
        }
    }
    sqlx::raw_sql("ROLLBACK").execute(&mut conn).await?;
    conn.close().await?;
    writer.map_or(Ok(()), Writer::finish)?;
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

/// Reads the database's clock, in microseconds since the Unix epoch.
async fn now(conn: &mut PgConnection) -> Result<i64, sqlx::Error> {
    let sql = "SELECT (date_part('epoch', clock_timestamp()) * 1000000)::bigint";
    sqlx::query(sql).persistent(false).fetch_one(conn).await?.try_get(0)
}

/// Adds the balance, as `peek` returns it, to the first row of each bucket.
async fn add_balances(
    rows: &mut [Row],
    limits: &Limits,
    moment: i64,
    conn: &mut PgConnection,
    statements: &Statements,
) -> Result<(), sqlx::Error> {
    let mut batch = Batch::new();
    let mut asked = Vec::new();
    for row in rows.iter_mut().filter(|row| row.shard == 0) {
        let call = Call::from(Item::new(row.name.as_str(), row.key.as_str()).count(0));
        // No balance for a name that the file does not define, or that no call could use.
        if let Ok(call) = Resolved::new(Op::Check, call, limits, None) {
            batch.add(&call, Some(moment));
            asked.push((call, &mut row.balance));
        }
    }
    if batch.is_empty() {
        return Ok(());
    }
    let answers = decide(conn, statements, &batch).await?;
    for (answer, (call, balance)) in answers.iter().zip(asked) {
        *balance = Some(answer.balances(&call).remaining());
    }
    Ok(())
}

fn refusal(error: sqlx::Error, schema: &Schema) -> CliError {
    let code = error.as_database_error().and_then(|error| error.code());
    if code.as_deref() != Some("42501") {
        return Error::of_statement(error, schema.name()).into();
    }
    let quoted = schema.quoted();
    CliError::failed(format!(
        "{}\nThe role needs: GRANT USAGE ON SCHEMA {quoted} TO ..; GRANT SELECT ON {quoted}.rate_limits TO ..; and with \
         --limits GRANT EXECUTE ON FUNCTION {quoted}.rate_limit_decide TO ..;",
        told(&error)
    ))
}
