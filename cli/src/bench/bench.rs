use sqlx::PgPool;

use crate::bench::measure::{measure, parts, round_trip};
use crate::bench::report::{self, Report, Setting};
use crate::bench::setup::{BenchArgs, BenchSetup, Work};
use crate::database::{Database, Running};
use crate::error::CliError;
use crate::json;
use crate::output::{self, Progress};
use crate::signals::interrupt;

pub(crate) async fn run(args: BenchArgs, database: Database) -> Result<(), CliError> {
    let running = database.start_durable().await?;
    let setup = BenchSetup::open(&running, &args).await?;
    let interrupted = interrupt();
    let measured = tokio::select! {
        measured = bench(&args, &running, &setup) => measured,
        () = interrupted => Err(CliError::failed("interrupted")),
    };
    // The rows are removed in any case. If both steps fail, the first error is returned.
    let interrupted = interrupt();
    let cleared = tokio::select! {
        cleared = setup.clear() => cleared,
        () = interrupted => Err(CliError::failed(format!("interrupted; {}", setup.left_behind()))),
    };
    if let (Err(_), Err(error)) = (&measured, &cleared) {
        output::note(error);
    }
    measured.and(cleared)
}

async fn bench(args: &BenchArgs, running: &Running, setup: &BenchSetup) -> Result<(), CliError> {
    let setting = Setting {
        postgresql: version(&setup.pool).await?,
        private: running.private_source().is_some(),
        schema: running.schema.name().to_owned(),
        seconds: args.seconds.as_secs_f64(),
        durability: args.durability.clone(),
        lanes: args.lanes,
    };
    // As JSON, everything is printed at the end.
    let show = |lines: Vec<String>| if args.json { Ok(()) } else { output::lines(lines) };
    show(report::heading(&setting))?;
    let progress = Progress::parts("measuring the round trip", 1 + Work::ALL.len() * parts(setup));
    let round_trip = round_trip(running, args.seconds).await?;
    progress.add(1);
    show(vec![report::round_trip(round_trip)])?;
    let mut measurements = Vec::new();
    for work in Work::ALL {
        show(vec![work.title(work.callers(args.callers))])?;
        progress.now(format!("measuring {}", work.title(work.callers(args.callers))));
        let figures = measure(setup, work, args, &progress).await?;
        show(figures.iter().flat_map(report::figures).collect())?;
        measurements.extend(figures);
    }
    drop(progress);
    let report = Report { setting, round_trip, measurements };
    show(report::meaning(&report))?;
    if args.json {
        output::line(json::line(&report))?;
    }
    Ok(())
}

/// The server's version without a distribution's suffix: `18.4`.
async fn version(pool: &PgPool) -> Result<String, CliError> {
    let version: String = sqlx::query_scalar("SHOW server_version").fetch_one(pool).await?;
    Ok(version.split(' ').next().unwrap_or_default().to_owned())
}
