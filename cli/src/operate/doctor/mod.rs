//! The command `doctor`: examines a database and its limiter, and changes nothing.

mod citus;
mod jobs;
mod schema;
mod server;
mod settings;
mod table;
mod tserver;

use std::io;
use std::process::ExitCode;
use std::time::Duration;

use clap::Args;
use serde_json::json;
use sqlx::postgres::{PgConnectOptions, PgRow};
use sqlx::{AssertSqlSafe, Connection, FromRow, PgConnection};

use crate::database::{cannot_connect, connect_with};
use crate::error::lacks_privilege;
use crate::text::{many, one_line};
use crate::{CliError, Database, Progress, Result, json, output};
use pg_limiter::{Error, Length, Schema};
pub(crate) use schema::TABLES;
use schema::{Role, function_names};
use settings::Settings;
pub(crate) use table::{Table, bytes};

pub(crate) async fn run(args: DoctorArgs, database: &Database) -> Result<ExitCode> {
    let running = database.named()?;
    let progress = Progress::of("examining the database");
    let (report, ended) = report(&args, &running.options, &running.schema).await?;
    drop(progress);
    output::line_if_open(if args.json { report.json() } else { report.text() })?;
    ended?;
    let is_ill = report.0.iter().any(|(_, finding)| finding.state >= State::Warning);
    Ok(ExitCode::from(u8::from(is_ill)))
}

pub(crate) async fn findings(options: &PgConnectOptions, schema: &Schema) -> Result<Findings> {
    let args = DoctorArgs { tserver: None, old_transaction: OLD_TRANSACTION, json: false };
    let (report, ended) = report(&args, options, schema).await?;
    ended.map(|()| report.0)
}

/// Returns what was found, also if the examination ended early, and then why.
async fn report(args: &DoctorArgs, options: &PgConnectOptions, schema: &Schema) -> Result<(Report, Result<()>)> {
    let mut session = Session::open(options, schema).await?;
    let mut report = Report::default();
    let failed = |error| CliError::failed(format!("cannot examine the database: {}", Error::database_message(&error)));
    let ended = examine(args, &mut session, &mut report).await.map_err(failed);
    let _ = session.connection.close().await;
    Ok((report, ended))
}

async fn examine(args: &DoctorArgs, session: &mut Session, report: &mut Report) -> sqlx::Result<()> {
    report.add("engine", server::engine(session).await?);
    report.add_made("encryption", server::encryption(session).await)?;
    report.add_made("isolation", server::isolation(session).await)?;
    if session.is_yugabyte {
        let address = args.tserver.clone().unwrap_or_else(|| tserver::address_on(session.options.get_host()));
        report.0.extend(tserver::check(&address).await);
    } else if args.tserver.is_some() {
        report.add("tserver flags", Finding::note("not checked: only YugabyteDB has tservers"));
    }
    report.add_made("clock", server::clock(session).await)?;
    if let Some(settings) = report.made("settings", Settings::read(session).await)? {
        // First, because a very short one ends the session at a check that is refused.
        report.add("time-outs", settings.timeouts());
        report.add("durability", settings.durability(session.is_yugabyte));
        report.add_made("standbys", settings.standbys(session).await)?;
        report.add_made("writing", settings.writable(session).await)?;
        limiter(session, &settings, args.old_transaction, report).await?;
        report.add_made("connections", settings::connections(session).await)?;
        if !session.is_yugabyte {
            report.add("locks", settings.locks());
        }
    }
    report.add_made("pooler", server::pooler(session).await)?;
    report.add_made("start-up settings", server::startup_settings(session).await)
}

/// Checks the limiter's objects in this database. `longest`: the age from which an open transaction is reported.
async fn limiter(session: &mut Session, settings: &Settings, longest: Length, report: &mut Report) -> sqlx::Result<()> {
    let Some(tables) = report.made("schema", schema::tables(session).await)? else { return Ok(()) };
    report.add_made("schema", schema::version(session, &tables).await)?;
    if !tables.contains("rate_limits") {
        return Ok(());
    }
    let findings = report.made("functions", schema::drift(session, &tables).await)?;
    report.0.extend(findings.into_iter().flatten());
    report.add_made("test clock", server::test_clock(session).await)?;
    if !session.is_yugabyte {
        report.add_made("publications", schema::publications(session).await)?;
    }
    let (findings, distributed) = report.made("Citus", citus::check(session).await)?.unwrap_or_default();
    report.0.extend(findings);
    if let Some(role) = report.made("grants", Role::read(session).await)? {
        report.add_made("grants", schema::calls(session, &role).await)?;
        report.add_made("tables by hand", schema::by_hand(session, &role).await)?;
    }
    let mut piles_up = false;
    if session.is_yugabyte {
        let found = "not checked: YugabyteDB stores rows differently, without dead rows and vacuum";
        report.add("table", Finding::note(found));
    } else if distributed {
        report.add("table", Finding::note("not checked: its rows are on the nodes; autovacuum runs there"));
    } else if let Some(table) = report.made("table", Table::read(session, "rate_limits").await)? {
        report.add("table", table.size());
        report.add("autovacuum", table.vacuum(settings));
        report.add("updates", table.updates());
        piles_up = table.piles_up();
    }
    report.add_made("idle rows", table::idle_rows(session).await)?;
    if !session.is_yugabyte {
        report.add_made("old transactions", table::transactions(session, longest.into(), piles_up).await)?;
    }
    if tables.contains(schema::JOBS) {
        report.add_made("jobs", jobs::check(session).await)?;
        report.0.extend(jobs::ids(session).await.map(|finding| ("ids of jobs", finding)));
        if !session.is_yugabyte {
            report.add_made("notifications", jobs::notifications(session).await)?;
            report.add_made("table of jobs", Table::read(session, schema::JOBS).await.map(|table| table.size()))?;
        }
    }
    Ok(())
}

pub(crate) type Findings = Vec<(&'static str, Finding)>;

#[derive(Debug, Default)]
struct Report(Findings);

impl Report {
    fn add(&mut self, check: &'static str, finding: Finding) {
        self.0.push((check, finding));
    }

    /// Adds a note if the database refused the check, and returns `None`. A lost connection ends the run.
    fn made<T>(&mut self, check: &'static str, result: sqlx::Result<T>) -> sqlx::Result<Option<T>> {
        match result {
            Err(error @ (sqlx::Error::Database(_) | sqlx::Error::ColumnDecode { .. } | sqlx::Error::RowNotFound)) => {
                let finding = Finding::note(format!("not checked: {}", Error::database_message(&error)));
                // Columns that the role may not see are NULL.
                let is_refused = !matches!(error, sqlx::Error::Database(_)) || lacks_privilege(&error);
                let who = "the owner of the tables, or as a role that has pg_monitor and may read the tables";
                self.add(check, if is_refused { finding.advise(format!("Run doctor as {who}.")) } else { finding });
                Ok(None)
            }
            result => result.map(Some),
        }
    }

    fn add_made(&mut self, check: &'static str, result: sqlx::Result<impl Into<Option<Finding>>>) -> sqlx::Result<()> {
        let finding = self.made(check, result)?.and_then(Into::into);
        self.0.extend(finding.map(|finding| (check, finding)));
        Ok(())
    }

    fn text(&self) -> String {
        let width = self.0.iter().map(|(check, _)| check.len()).max().unwrap_or_default();
        let colours = ["\u{1b}[32m", "\u{1b}[36m", "\u{1b}[33m", "\u{1b}[31m"];
        let mut lines = Vec::new();
        for (check, Finding { state, found, advice }) in &self.0 {
            // Only the first two columns are padded.
            let (colour, end) = if output::colours() { (colours[*state as usize], "\u{1b}[0m") } else { ("", "") };
            lines.push(format!("{colour}{:<7}{end}  {check:<width$}  {}", state.as_str(), one_line(found)));
            lines.extend(advice.iter().map(|advice| format!("{:9}{}", "", one_line(advice))));
        }
        let counts = [State::Problem, State::Warning, State::Note].map(|state| {
            let count = self.0.iter().filter(|(_, finding)| finding.state == state).count();
            many(count as u64, state.as_str())
        });
        lines.extend([String::new(), counts.join(", ")]);
        lines.join("\n")
    }

    fn json(&self) -> String {
        let object = |(check, Finding { state, found, advice }): &(&str, Finding)| {
            let advice = (!advice.is_empty()).then(|| advice.join("\n"));
            json::line(&json!({"check": check, "state": state.as_str(), "found": found, "advice": advice}))
        };
        format!("[\n  {}\n]", self.0.iter().map(object).collect::<Vec<_>>().join(",\n  "))
    }
}

/// The state that a check found, from good to bad.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum State {
    Ok,
    /// Worth knowing, or could not be checked.
    Note,
    /// It works, but not as well as it could, or not indefinitely.
    Warning,
    /// It does not work, or it can lose data.
    Problem,
}

impl State {
    pub(crate) const fn as_str(self) -> &'static str {
        ["ok", "note", "warning", "problem"][self as usize]
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Finding {
    pub(crate) state: State,
    pub(crate) found: String,
    pub(crate) advice: Vec<String>,
}

macro_rules! findings {
    ($($name:ident => $state:ident),+) => {
        $(pub(super) fn $name(found: impl Into<String>) -> Self {
            Self { state: State::$state, found: found.into(), advice: Vec::new() }
        })+
    };
}

impl Finding {
    findings!(ok => Ok, note => Note, warning => Warning, problem => Problem);

    pub(super) fn advise(mut self, advice: impl Into<String>) -> Self {
        self.advice.push(advice.into());
        self
    }

    /// Keeps only what was found, if that is well.
    pub(super) fn ok_if(self, is_well: bool) -> Self {
        if is_well { Self::ok(self.found) } else { self }
    }

    /// Adds another result, if there is one. The worse state of the two applies.
    pub(super) fn and(mut self, other: impl Into<Option<Self>>) -> Self {
        if let Some(other) = other.into() {
            self.state = self.state.max(other.state);
            self.found = format!("{}; {}", self.found, other.found);
            self.advice.extend(other.advice);
        }
        self
    }
}

/// Short timeouts limit the load on the database, and none that the role has ends a check. (Older servers lack the last one. This
/// returns no row.) The search path prevents user functions from replacing built-in ones.
const BOUNDS: &str = "SET LOCAL statement_timeout = '10s'; SET LOCAL lock_timeout = '1s'; \
     SET LOCAL search_path = pg_catalog, pg_temp; SET LOCAL idle_in_transaction_session_timeout = 0; \
     SELECT FROM current_setting('transaction_timeout', true) AS t \
       WHERE CASE WHEN t IS NOT NULL THEN set_config('transaction_timeout', '0', true) IS NULL END";

/// Without [`BOUNDS`]: they would change settings that a query reads, and other engines may not know them.
const PLAIN: &str = "BEGIN READ ONLY";

/// Client timeout, longer than the server's own.
const PATIENCE: Duration = Duration::from_secs(20);

/// Queries the database. Each query is one message with its own read-only transaction: for poolers, and so that none stays open.
struct Session {
    connection: PgConnection,
    /// Those that the server, or a pooler, accepts.
    options: PgConnectOptions,
    /// The error with which a pooler rejected the driver's own start-up settings.
    refused: Option<String>,
    schema: Schema,
    schema_literal: String,
    /// The relations `c` of the schema, and the limiter's functions `p`, as SQL.
    relations: String,
    functions: String,
    is_yugabyte: bool,
}

impl Session {
    async fn open(options: &PgConnectOptions, schema: &Schema) -> Result<Self> {
        let bare = options.clone().extra_float_digits(None);
        let (connection, options, refused) = match connect_with(options).await {
            Ok(connection) => (connection, options.clone(), None),
            Err(error) if Error::refuses_settings(&error) => match connect_with(&bare).await {
                Ok(connection) => (connection, bare, Some(Error::database_message(&error))),
                Err(_) => return Err(cannot_connect(error)),
            },
            Err(error) => return Err(cannot_connect(error)),
        };
        let (schema, schema_literal, names) = (schema.clone(), literal(schema.name()), function_names(schema));
        let of_schema = format!("JOIN pg_namespace AS n ON n.nspname = {schema_literal} AND n.oid =");
        let relations = format!("pg_class AS c {of_schema} c.relnamespace");
        let functions = format!("pg_proc AS p {of_schema} p.pronamespace AND p.proname IN ({names})");
        Ok(Self { connection, options, refused, schema, schema_literal, relations, functions, is_yugabyte: false })
    }

    async fn row<T: Columns>(&mut self, sql: &str) -> sqlx::Result<T> {
        first(self.rows(sql).await?)
    }

    async fn rows<T: Columns>(&mut self, sql: &str) -> sqlx::Result<Vec<T>> {
        self.rows_at("READ COMMITTED", sql).await
    }

    async fn rows_at<T: Columns>(&mut self, isolation: &str, sql: &str) -> sqlx::Result<Vec<T>> {
        ask(&mut self.connection, &format!("BEGIN ISOLATION LEVEL {isolation} READ ONLY; {BOUNDS}"), sql).await
    }

    /// The name of an object in the limiter's schema, as SQL.
    fn table(&self, name: &str) -> String {
        // Omit unneeded quotes, because people read this.
        match self.schema.name() {
            plain @ ("rate_limit" | "public") => format!("{plain}.{name}"),
            _ => format!("{}.{name}", self.schema.quoted()),
        }
    }
}

trait Columns: for<'r> FromRow<'r, PgRow> {}

impl<T: for<'r> FromRow<'r, PgRow>> Columns for T {}

fn first<T>(rows: Vec<T>) -> sqlx::Result<T> {
    rows.into_iter().next().ok_or(sqlx::Error::RowNotFound)
}

/// `begin`: [`PLAIN`], or a begin with [`BOUNDS`].
async fn ask<T: Columns>(connection: &mut PgConnection, begin: &str, sql: &str) -> sqlx::Result<Vec<T>> {
    let message = AssertSqlSafe(format!("{begin}; {sql}; ROLLBACK"));
    let answer = async {
        let result = sqlx::raw_sql(message).fetch_all(&mut *connection).await;
        if let Err(sqlx::Error::Database(_)) = &result {
            // After an error, the server skips the rest of the message, including its ROLLBACK.
            sqlx::raw_sql("ROLLBACK").execute(connection).await?;
        }
        result
    };
    let no_answer = |_| io::Error::new(io::ErrorKind::TimedOut, format!("no answer within {PATIENCE:?}"));
    tokio::time::timeout(PATIENCE, answer).await.map_err(no_answer)??.iter().map(T::from_row).collect()
}

/// Quotes a string. The result is correct with any `standard_conforming_strings`.
pub(crate) fn literal(text: &str) -> String {
    let quoted = text.replace('\'', "''");
    if quoted.contains('\\') { format!(" E'{}'", quoted.replace('\\', "\\\\")) } else { format!("'{quoted}'") }
}

pub(crate) const DOCTOR_EXIT_CODES: &str = "\
Exit codes:
  0  only `ok` and notes
  1  a warning or a problem
  2  an invalid argument
  3  the database is unavailable, or something else failed

Every transaction of `doctor` is READ ONLY. Use the URL of the application: the findings are valid for its role and its path to
the server.";

const OLD_TRANSACTION: Length = Length::from_micros(300_000_000);

#[derive(Args, Debug)]
pub(crate) struct DoctorArgs {
    /// Address of the web page of a YugabyteDB tserver, which shows its flags [default: the database's host, port 9000]
    #[arg(long, value_name = "HOST:PORT", value_parser = tserver::parse_address)]
    tserver: Option<String>,
    /// Age from which an open transaction is reported, such as 5m; capped at 30s if old row versions pile up
    #[arg(long, value_name = "LENGTH", default_value_t = OLD_TRANSACTION)]
    old_transaction: Length,
    /// Print a JSON array of objects, one per check
    #[arg(long)]
    json: bool,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn literals_escape_quotes_and_backslashes() {
        assert_eq!([literal("a"), literal("o'b"), literal("a\\'")], ["'a'", "'o''b'", " E'a\\\\'''"]);
    }
}
