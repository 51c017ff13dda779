use std::process::ExitCode;
use std::time::Duration;

use clap::Args;
use sqlx::postgres::PgConnectOptions;
use sqlx::{Connection, PgConnection};

use crate::database::{Database, cannot_connect, connect_with};
use crate::doctor::engine::{self, Engine};
use crate::doctor::report::{Finding, Report};
use crate::doctor::rights::{self, Role};
use crate::doctor::session::{Session, Settings};
use crate::doctor::table::Table;
use crate::doctor::tserver::{self, Address};
use crate::doctor::{
    citus, clocks, connections, encryption, idle_rows, jobs, pooler, replication, schema, transactions,
};
use crate::error::CliError;
use crate::output::{self, Progress};
use crate::text::parse_length;
use pg_limiter::{Error, Schema};

pub(crate) async fn run(args: DoctorArgs, database: Database) -> Result<ExitCode, CliError> {
    let running = database.named()?;
    let progress = Progress::of("examining the database");
    let report = report(&args, &running.options, &running.schema).await?;
    drop(progress);
    let code = report.exit_code();
    let printed = if args.json { output::line(report.json()) } else { output::lines(report.text()) };
    match printed {
        Ok(()) | Err(CliError::OutputClosed) => Ok(code),
        Err(error) => Err(error),
    }
}

/// The findings of the checks with the default arguments, by check.
pub(crate) async fn findings(
    options: &PgConnectOptions,
    schema: &Schema,
) -> Result<Vec<(&'static str, Finding)>, CliError> {
    Ok(report(&DoctorArgs::default(), options, schema).await?.into_findings())
}

async fn report(args: &DoctorArgs, options: &PgConnectOptions, schema: &Schema) -> Result<Report, CliError> {
    let (connection, options, refused) = connect(options).await?;
    let mut session = Session { connection, schema: schema.clone() };
    let mut report = Report::default();
    examine(args, &mut session, &options, refused.as_deref(), &mut report).await.map_err(|error| {
        CliError::failed(format!("cannot examine the database: {}", Error::database_message(&error)))
    })?;
    let _ = session.connection.close().await;
    Ok(report)
}

/// Connects. Returns the options of the connection, too, and the error if a pooler rejected the driver's own start-up settings.
async fn connect(options: &PgConnectOptions) -> Result<(PgConnection, PgConnectOptions, Option<String>), CliError> {
    let refusal = match connect_with(options).await {
        Ok(connection) => return Ok((connection, options.clone(), None)),
        Err(error) if Error::refuses_settings(&error) => error,
        Err(error) => return Err(cannot_connect(error)),
    };
    let options = options.clone().extra_float_digits(None);
    match connect_with(&options).await {
        Ok(connection) => Ok((connection, options, Some(Error::database_message(&refusal)))),
        Err(_) => Err(cannot_connect(refusal)),
    }
}

async fn examine(
    args: &DoctorArgs,
    session: &mut Session,
    options: &PgConnectOptions,
    refused: Option<&str>,
    report: &mut Report,
) -> Result<(), sqlx::Error> {
    let engine = engine::engine(session).await?;
    let yugabyte = engine.is_yugabyte();
    report.add("engine", engine.judge());
    report.add_made("encryption", encryption::check(session, options).await)?;
    report.add_made("isolation", engine::isolation(session, yugabyte).await)?;
    flags(args, &engine, options, report).await;
    report.add_made("clock", clocks::difference(session).await)?;
    if let Some(settings) = report.made("settings", Settings::read(session).await)? {
        report.add("durability", connections::durability(&settings, yugabyte));
        report.add_made("writing", connections::writable(session, &settings).await)?;
        limiter(args, session, yugabyte, &settings, report).await?;
        report.add_made("connections", connections::connections(session, &settings).await)?;
        report.add("time-outs", connections::timeouts(&settings));
        if !yugabyte {
            report.add("locks", connections::locks(&settings));
        }
    }
    report.add_made("pooler", pooler::check(&mut session.connection, options).await)?;
    report.add_made("start-up settings", pooler::settings(refused, options).await)
}

async fn flags(args: &DoctorArgs, engine: &Engine, options: &PgConnectOptions, report: &mut Report) {
    if engine.is_yugabyte() {
        let address = args.tserver.clone().unwrap_or_else(|| Address::of_host(options.get_host()));
        report.extend(tserver::check(&address).await);
    } else if args.tserver.is_some() {
        report.add("tserver flags", Finding::note("not checked: only YugabyteDB has tservers"));
    }
}

/// Checks the limiter's objects in this database.
async fn limiter(
    args: &DoctorArgs,
    session: &mut Session,
    yugabyte: bool,
    settings: &Settings,
    report: &mut Report,
) -> Result<(), sqlx::Error> {
    let tables = schema::tables(session).await;
    let Some(tables) = report.made("schema", tables)? else {
        return Ok(());
    };
    report.add_made("schema", schema::version(session, &tables).await)?;
    if !tables.contains("rate_limits") {
        return Ok(());
    }
    let findings = report.made("functions", schema::drift(session, &tables).await)?;
    report.extend(findings.into_iter().flatten());
    report.add_made("test clock", clocks::test_clock(session).await)?;
    if !yugabyte {
        report.add_made("publications", replication::publications(session).await)?;
    }
    let (findings, distributed) = report.made("Citus", citus::check(session).await)?.unwrap_or_default();
    report.extend(findings);
    if let Some(role) = report.made("grants", Role::read(session).await)? {
        report.add_made("grants", rights::calls(session, &role).await)?;
        report.add_made("tables by hand", rights::by_hand(session, &role).await)?;
    }
    let mut piles_up = false;
    if yugabyte {
        let found = "not checked: YugabyteDB stores rows differently, without dead rows and vacuum";
        report.add("table", Finding::note(found));
    } else if distributed {
        report.add("table", Finding::note("not checked: its rows are on the nodes; autovacuum runs there"));
    } else {
        let table = Table::read(session, "rate_limits").await;
        if let Some(table) = report.made("table", table)? {
            report.add("table", table.size());
            report.add("autovacuum", table.vacuum(settings));
            report.add("updates", table.updates());
            piles_up = table.piles_up();
        }
    }
    report.add_made("idle rows", idle_rows::check(session, yugabyte).await)?;
    if !yugabyte {
        report.add_made("old transactions", transactions::check(session, args.old_transaction, piles_up).await)?;
    }
    if !tables.contains(schema::JOBS) {
        return Ok(());
    }
    report.add_made("jobs", jobs::check(session).await)?;
    report.extend(replication::job_ids(session).await.map(|finding| ("ids of jobs", finding)));
    if !yugabyte {
        report.add_made("notifications", jobs::notifications(session).await)?;
        let table = Table::read(session, "jobs").await;
        if let Some(table) = report.made("table of jobs", table)? {
            report.add("table of jobs", table.size());
        }
    }
    Ok(())
}

pub(crate) const DOCTOR_EXIT_CODES: &str = "\
Exit codes:
  0  only `ok` and notes
  1  a warning or a problem
  2  an invalid argument
  3  the database is unavailable, or something else failed

Every transaction of `doctor` is READ ONLY. Use the URL of the application: the findings are valid for its role and its path to
the server.";

const OLD_TRANSACTION: &str = "5m";

#[derive(Args, Debug)]
pub(crate) struct DoctorArgs {
    /// Address of the web page of a YugabyteDB tserver, which shows its flags [default: the database's host, port 9000]
    #[arg(long, value_name = "HOST:PORT")]
    pub(super) tserver: Option<Address>,
    /// Age from which an open transaction is reported, such as 5m; capped at 30s if old row versions pile up
    #[arg(long, value_name = "LENGTH", default_value = OLD_TRANSACTION, value_parser = parse_length)]
    pub(super) old_transaction: Duration,
    /// Print a JSON array of objects, one per check
    #[arg(long)]
    pub(super) json: bool,
}

impl Default for DoctorArgs {
    /// The arguments that no option changes.
    fn default() -> Self {
        let old_transaction = parse_length(OLD_TRANSACTION).unwrap_or(Duration::from_secs(300));
        Self { tserver: None, old_transaction, json: false }
    }
}
