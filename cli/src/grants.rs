//! The command `grants`: the grants that a role needs for what it does.

use std::process::ExitCode;

use clap::{Args, ValueEnum};
use serde_json::json;

use crate::database::Database;
use crate::error::CliError;
use crate::{json, output};
use pg_limiter::migrate::Use;

#[derive(Args, Debug)]
pub(super) struct GrantsArgs {
    /// A use of the limiter; separate several by commas
    #[arg(long = "for", value_name = "USE", required = true, value_delimiter = ',')]
    uses: Vec<UseName>,
    /// The role
    role: String,
    /// Print JSON: an object for each use
    #[arg(long)]
    json: bool,
}

/// The name of a use.
#[derive(Clone, Copy, Debug, ValueEnum)]
enum UseName {
    /// A service that calls the library
    App,
    /// A service that calls the functions from SQL, in any language, also with the rules in its calls
    Sql,
    /// A role with statements that fire triggers or policies, under stored limits: without power over the rules
    Trigger,
    /// A service that enqueues and runs jobs; with app, if its handlers limit
    Worker,
    /// Dashboards, and people that look at limits, keys and jobs
    Reader,
    /// Operators, with this tool
    Operator,
}

impl From<UseName> for Use {
    fn from(name: UseName) -> Self {
        match name {
            UseName::App => Self::App,
            UseName::Sql => Self::Sql,
            UseName::Trigger => Self::Trigger,
            UseName::Worker => Self::Worker,
            UseName::Reader => Self::Reader,
            UseName::Operator => Self::Operator,
        }
    }
}

/// Prints the statements. Connects to nothing: a superuser or the owner of the schema runs them.
pub(super) fn run(args: &GrantsArgs, database: &Database) -> Result<ExitCode, CliError> {
    if args.role.is_empty() {
        return Err(CliError::usage("the role is empty: give its name"));
    }
    for name in &args.uses {
        let of = Use::from(*name);
        let grants = of.grants(&database.schema, &args.role);
        if args.json {
            output::line(json::line(&json!({"for": of.name(), "role": args.role, "grants": grants})))?;
        } else {
            output::lines(grants)?;
        }
    }
    Ok(ExitCode::SUCCESS)
}
