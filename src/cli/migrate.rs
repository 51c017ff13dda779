//! `migrate`.

use std::process::ExitCode;

use clap::Args;

use crate::Schema;
use crate::cli::database::Database;
use crate::cli::error::CliError;
use crate::cli::output;
use crate::migrate::{Migrator, migrations, uninstall};

#[derive(Args, Debug)]
pub(super) struct MigrateArgs {
    /// Print the SQL instead, without any database: pg-limiter migrate --print | psql --single-transaction
    #[arg(long, group = "instead")]
    print: bool,
    /// With --print: from this version on, for a schema that has those before it
    #[arg(long, requires = "print", value_name = "VERSION", default_value_t = 1, hide_default_value = true)]
    from: i32,
    /// Print the SQL that removes the table and the functions again, with all balances
    #[arg(long, group = "instead")]
    print_uninstall: bool,
    /// List the versions that this release knows
    #[arg(long, group = "instead")]
    list: bool,
}

pub(super) async fn run(args: MigrateArgs, database: Database) -> Result<ExitCode, CliError> {
    if args.print {
        output::lines([sql(&database.schema, args.from)?])?;
    } else if args.print_uninstall {
        output::lines([uninstall(&database.schema).trim_end()])?;
    } else if args.list {
        output::lines(migrations(&database.schema).iter().map(|one| format!("{:04} {}", one.version, one.name)))?;
    } else {
        let running = database.start().await?;
        let pool = running.pool(1).await?;
        let report = Migrator::new(running.schema().clone()).run(&pool).await?;
        pool.close().await;
        let applied = match report.applied.as_slice() {
            [] => "nothing to do".to_owned(),
            versions => {
                let versions: Vec<String> = versions.iter().map(ToString::to_string).collect();
                format!("applied {}", versions.join(", "))
            }
        };
        output::line(format!("schema \"{}\" is at version {}: {applied}", running.schema(), report.version))?;
    }
    Ok(ExitCode::SUCCESS)
}

/// Every migration from this version on, and the schema itself if it may not be there.
fn sql(schema: &Schema, from: i32) -> Result<String, CliError> {
    let mut text = String::new();
    if from <= 1 && schema.name() != "public" {
        text.push_str(&format!("CREATE SCHEMA IF NOT EXISTS {};\n\n", schema.quoted()));
    }
    for migration in migrations(schema).into_iter().filter(|migration| migration.version >= from) {
        text.push_str(&format!("-- {:04}_{}\n", migration.version, migration.name));
        text.push_str(migration.sql.trim_end());
        text.push('\n');
    }
    text.truncate(text.trim_end().len());
    if text.is_empty() {
        return Err(CliError::usage(format!("--from {from}: there is no such version; `migrate --list` lists them")));
    }
    Ok(text)
}
