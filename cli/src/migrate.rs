//! The command `migrate`.

use std::process::ExitCode;

use clap::Args;

use crate::database::Database;
use crate::error::CliError;
use crate::output;
use pg_limiter::migrate::{Drift, MigrateReport, Migrator, Part, migrations, script, uninstall};

#[derive(Args, Debug)]
pub(super) struct MigrateArgs {
    /// Report how the database differs from this release, without changing it; exit with 1 if it differs
    #[arg(long, group = "instead")]
    check: bool,
    /// Print the SQL instead of running it; needs no database: pg-limiter migrate --print | psql --single-transaction
    #[arg(long, group = "instead")]
    print: bool,
    /// With --print: print only the migrations from this version on, and the functions
    #[arg(long, requires = "print", value_name = "VERSION", group = "part")]
    from: Option<i32>,
    /// With --print: print only the functions
    #[arg(long, requires = "print", group = "part")]
    functions: bool,
    /// Print the SQL that removes the tables and functions, with all balances
    #[arg(long, group = "instead")]
    print_uninstall: bool,
    /// Distribute the tables over the nodes of a Citus cluster, with the rows that they have
    #[arg(long, group = "instead")]
    distributed: bool,
    /// List the migrations of this release, one version per line
    #[arg(long, group = "instead")]
    list: bool,
}

pub(super) async fn run(args: MigrateArgs, database: Database) -> Result<ExitCode, CliError> {
    if args.print {
        let part = match (args.functions, args.from) {
            (true, _) => Part::Functions,
            (false, None) => Part::All,
            (false, Some(version)) => Part::From(version),
        };
        let known = migrations(&database.schema);
        if let Part::From(version) = part
            && !known.iter().any(|migration| migration.version == version)
        {
            let last = known.len();
            return Err(CliError::usage(format!(
                "--from {version}: this version does not exist; use a version from 1 to {last}"
            )));
        }
        output::lines([script(&database.schema, part).trim_end()])?;
    } else if args.print_uninstall {
        output::lines([uninstall(&database.schema).trim_end()])?;
    } else if args.list {
        output::lines(migrations(&database.schema).iter().map(|one| format!("{:04} {}", one.version, one.name)))?;
    } else {
        return on(&args, database).await;
    }
    Ok(ExitCode::SUCCESS)
}

async fn on(args: &MigrateArgs, database: Database) -> Result<ExitCode, CliError> {
    let running = database.start().await?;
    let pool = running.pool(1).await?;
    let migrator = Migrator::new(running.schema().clone()).distributed(args.distributed);
    let drift = migrator.check(&pool).await?;
    if args.check {
        pool.close().await;
        if drift.is_empty() {
            output::line(format!("schema \"{}\" matches this release", running.schema()))?;
            return Ok(ExitCode::SUCCESS);
        }
        output::lines(drift.iter().map(ToString::to_string))?;
        return Ok(ExitCode::FAILURE);
    }
    // Report a test clock, and functions that were changed by hand, before they are replaced.
    let reported = drift.iter().filter(|one| matches!(one, Drift::FunctionChanged { .. } | Drift::TestClock));
    output::lines(reported.map(ToString::to_string))?;
    let report = migrator.run(&pool).await?;
    pool.close().await;
    output::line(format!("schema \"{}\" is at version {}: {}", running.schema(), report.version, done(&report)))?;
    Ok(ExitCode::SUCCESS)
}

fn done(report: &MigrateReport) -> String {
    let versions: Vec<String> = report.applied.iter().map(ToString::to_string).collect();
    match (versions.is_empty(), report.functions.len()) {
        (true, 0) => "nothing to do".to_owned(),
        (true, functions) => format!("updated {functions} functions"),
        (false, 0) => format!("applied {}", versions.join(", ")),
        (false, functions) => format!("applied {}, updated {functions} functions", versions.join(", ")),
    }
}
