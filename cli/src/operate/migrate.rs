//! The commands `migrate`, and `grants`: the grants that a role needs for what it does.

use std::process::ExitCode;

use clap::Args;
use clap::builder::{PossibleValue, PossibleValuesParser, TypedValueParser};
use serde_json::{Value, json};

use crate::text::many;
use crate::{CliError, Database, Progress, Result, json, output};
use pg_limiter::migrate::{Contents, Drift, MigrateReport, Migrator, Part, Use, migrations, script, uninstall};

#[derive(Args, Debug)]
pub(crate) struct MigrateArgs {
    /// Report how the database differs from this release, without changing it; exit with 1 if it differs
    #[arg(long, group = "instead")]
    check: bool,
    /// Print the SQL instead of running it; needs no database: pg-limiter migrate --print | psql --single-transaction
    #[arg(long, group = "instead")]
    print: bool,
    /// With --print: print only the migrations from this version on, and the functions
    #[arg(long, value_name = "VERSION", group = "part")]
    from: Option<i32>,
    /// With --print: print only the functions
    #[arg(long, group = "part")]
    functions: bool,
    /// Print the SQL that removes the tables and functions, with all balances
    #[arg(long, group = "instead")]
    print_uninstall: bool,
    /// Distribute the tables over the nodes of a Citus cluster, with the rows that they have
    #[arg(long, group = "instead")]
    distributed: bool,
    /// Leave out the tables and functions of the queue; a later run without this option adds them
    #[arg(long, conflicts_with = "print_uninstall")]
    without_queue: bool,
    /// List the migrations of this release, one per line
    #[arg(long, group = "instead")]
    list: bool,
    /// Print JSON: one object; with --list, one object per line
    #[arg(long, conflicts_with_all = ["print", "print_uninstall"])]
    json: bool,
}

pub(crate) async fn run(args: MigrateArgs, database: &Database) -> Result<ExitCode> {
    if !args.print {
        let options = [("--from", args.from.is_some()), ("--functions", args.functions)];
        CliError::refuse_without("--print", "other runs of migrate", &options)?;
    }
    let parts = if args.without_queue { &[Part::Core] } else { Part::ALL };
    if args.print {
        let versions: Vec<i32> = migrations(&database.schema, parts).iter().map(|one| one.version).collect();
        let contents = match args.from {
            _ if args.functions => Contents::Functions,
            None => Contents::All,
            Some(version) if versions.contains(&version) => Contents::From(version),
            Some(version) => {
                let last = versions.last().copied().unwrap_or_default();
                let why = format!("--from {version}: this version does not exist; use a version from 1 to {last}");
                return Err(CliError::usage(why));
            }
        };
        output::line(script(&database.schema, contents, parts).trim_end())?;
    } else if args.print_uninstall {
        output::line(uninstall(&database.schema).trim_end())?;
    } else if args.list {
        output::lines(migrations(&database.schema, parts).iter().map(|one| match args.json {
            true => json::line(&json!({"version": one.version, "name": one.name})),
            false => format!("{:04} {}", one.version, one.name),
        }))?;
    } else {
        return on(&args, database).await;
    }
    Ok(ExitCode::SUCCESS)
}

async fn on(args: &MigrateArgs, database: &Database) -> Result<ExitCode> {
    let running = database.start(false).await?;
    let (pool, schema) = (running.pool(1).await?, &running.schema);
    let progress = Progress::of("comparing the schema with this release");
    let migrator = Migrator::new(schema.clone()).distributed(args.distributed).without_queue(args.without_queue);
    let drift = migrator.check(&pool).await.map_err(CliError::failed)?;
    if args.check {
        pool.close().await;
        drop(progress);
        if args.json {
            let differences: Vec<_> = drift.iter().map(difference).collect();
            let (ok, schema) = (drift.is_empty(), schema.name());
            output::line_if_open(json::line(&json!({"ok": ok, "schema": schema, "differences": differences})))?;
        } else if drift.is_empty() {
            output::line_if_open(format!("schema \"{schema}\" matches this release"))?;
        } else {
            output::lines_if_open(drift.iter().flat_map(found))?;
        }
        return Ok(ExitCode::from(u8::from(!drift.is_empty())));
    }
    // Report a test clock, and functions that were changed by hand, before they are replaced.
    let replaced = || drift.iter().filter(|one| matches!(one, Drift::FunctionChanged { .. } | Drift::TestClock));
    if !args.json {
        output::lines_if_open(drift.iter().filter(|one| matches!(one, Drift::Misowned { .. })).flat_map(found))?;
        output::lines_if_open(replaced().map(ToString::to_string))?;
    }
    progress.now("migrating the schema");
    let report = migrator.run(&pool).await.map_err(CliError::failed)?;
    // The report has no privileges. The functions that PUBLIC could execute stay so unless their owner migrates.
    let is_privilege =
        |one: &&Drift| one.is_repaired_by_migrate() && matches!(one, Drift::ExtraGrant { .. } | Drift::RecordsHidden);
    let mut privileges: Vec<&Drift> = drift.iter().filter(is_privilege).collect();
    let left = migrator.check(&pool).await.map_err(CliError::failed)?;
    privileges.retain(|one| !left.contains(one));
    pool.close().await;
    drop(progress);
    output::line(match args.json {
        true => json::line(&json!({
            "schema": schema.name(),
            "version": report.version,
            "applied": report.applied,
            "functions": report.functions,
            "replaced": replaced().map(difference).collect::<Vec<_>>(),
            "privileges": privileges.iter().map(|one| difference(one)).collect::<Vec<_>>(),
        })),
        false => format!("schema \"{schema}\" is at version {}: {}", report.version, done(&report, &privileges)),
    })?;
    // As after a restore of a part, or before its end.
    let missing: Vec<_> = left.iter().filter(|one| matches!(one, Drift::ObjectMissing { .. })).map(found).collect();
    let why = "migrate does not change existing tables: restore the whole schema, or create what is missing by hand";
    let why = format!("calls can fail: {}; {why}", missing.concat().join("; "));
    if missing.is_empty() { Ok(ExitCode::SUCCESS) } else { Err(CliError::failed(why)) }
}

fn difference(drift: &Drift) -> Value {
    json!({"found": found(drift).join("\n"), "repaired_by_migrate": drift.is_repaired_by_migrate()})
}

/// The lines of a difference. The statements that mend it are complete, so that they can be run as they are.
fn found(drift: &Drift) -> Vec<String> {
    match drift {
        Drift::Misowned { problem, statements } => {
            let run = if statements.is_empty() { "" } else { "; let a superuser, or a member of both roles, run:" };
            std::iter::once(format!("-- {problem}{run}")).chain(statements.iter().cloned()).collect()
        }
        Drift::Attached { problem, statement } => vec![format!("-- {problem}; run:"), statement.clone()],
        other => vec![other.to_string()],
    }
}

/// `privileges` are the differences in privileges that the run has repaired.
fn done(report: &MigrateReport, privileges: &[&Drift]) -> String {
    let MigrateReport { applied, functions, .. } = report;
    let applied = (!applied.is_empty()).then(|| format!("applied {}", applied.join(", ")));
    let updated = (!functions.is_empty()).then(|| format!("updated {}", many(functions.len() as u64, "function")));
    let are_shown = privileges.iter().any(|one| matches!(one, Drift::RecordsHidden));
    let shown = are_shown.then(|| "granted SELECT on the records to PUBLIC".to_owned());
    let closed = privileges.len() - usize::from(are_shown);
    let closed = (closed > 0).then(|| format!("revoked EXECUTE on {} from PUBLIC", many(closed as u64, "function")));
    let done: Vec<String> = applied.into_iter().chain(updated).chain(shown).chain(closed).collect();
    if done.is_empty() { "nothing to do".to_owned() } else { done.join(", ") }
}

#[derive(Args, Debug)]
pub(crate) struct GrantsArgs {
    /// A use of the limiter; separate several by commas
    #[arg(long = "for", value_name = "USE", required = true, value_delimiter = ',', value_parser = uses())]
    uses: Vec<Use>,
    /// The role
    role: String,
    /// The queue is not installed: leave out its functions and tables
    #[arg(long)]
    without_queue: bool,
    /// Print JSON: an object for each use
    #[arg(long)]
    json: bool,
}

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

fn uses() -> impl TypedValueParser<Value = Use> {
    let values = USES.map(|(of, help)| PossibleValue::new(of.name()).help(help));
    PossibleValuesParser::new(values).try_map(|name| Use::ALL.into_iter().find(|of| of.name() == name).ok_or("no use"))
}

/// Prints the statements. Connects to nothing: a superuser or the owner of the schema runs them.
pub(crate) fn grants(args: &GrantsArgs, database: &Database) -> Result<()> {
    CliError::refuse_if(args.role.is_empty(), "the role is empty: give its name")?;
    let parts: &[Part] = if args.without_queue { &[Part::Core] } else { Part::ALL };
    args.uses.iter().try_for_each(|of| {
        let grants = of.grants(&database.schema, parts, &args.role);
        match args.json {
            true => output::line(json::line(&json!({"for": of.name(), "role": args.role, "grants": grants}))),
            false => output::lines(grants),
        }
    })
}
