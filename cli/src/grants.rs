//! The command `grants`: the grants that a role needs for what it does.

use clap::Args;
use clap::builder::{PossibleValue, PossibleValuesParser, TypedValueParser};
use serde_json::json;

use crate::database::Database;
use crate::error::CliError;
use crate::{json, output};
use pg_limiter::migrate::Use;

#[derive(Args, Debug)]
pub(super) struct GrantsArgs {
    /// A use of the limiter; separate several by commas
    #[arg(long = "for", value_name = "USE", required = true, value_delimiter = ',', value_parser = uses())]
    uses: Vec<Use>,
    /// The role
    role: String,
    /// Print JSON: an object for each use
    #[arg(long)]
    json: bool,
}

/// The uses, and what they are for.
const USES: [(Use, &str); 6] = [
    (Use::App, "A service that calls the library"),
    (Use::Sql, "A service that calls the functions from SQL, in any language, also with the rules in its calls"),
    (
        Use::Trigger,
        "A role with statements that fire triggers or policies, under stored limits: without power over the rules",
    ),
    (Use::Worker, "A service that enqueues and runs jobs; with app, if its handlers limit"),
    (Use::Reader, "Dashboards, and people that look at limits, keys and jobs"),
    (Use::Operator, "Operators, with this tool"),
];

/// Parses the name of a use.
fn uses() -> impl TypedValueParser<Value = Use> {
    let values = USES.map(|(of, help)| PossibleValue::new(of.name()).help(help));
    PossibleValuesParser::new(values).try_map(|name| Use::ALL.into_iter().find(|of| of.name() == name).ok_or("no use"))
}

/// Prints the statements. Connects to nothing: a superuser or the owner of the schema runs them.
pub(super) fn run(args: &GrantsArgs, database: &Database) -> Result<(), CliError> {
    if args.role.is_empty() {
        return Err(CliError::usage("the role is empty: give its name"));
    }
    for of in &args.uses {
        let grants = of.grants(&database.schema, &args.role);
        if args.json {
            output::line(json::line(&json!({"for": of.name(), "role": args.role, "grants": grants})))?;
        } else {
            output::lines(grants)?;
        }
    }
    Ok(())
}
