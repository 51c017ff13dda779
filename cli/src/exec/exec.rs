use std::process::ExitCode;

use crate::database::Database;
use crate::error::CliError;
use crate::exec::acquire::acquire;
use crate::exec::args::ExecArgs;
use crate::exec::outcome::{Failure, Outcome};
use crate::exec::work::work;
use crate::signals::Signals;
use crate::{input, output};
use pg_limiter::{Lease, Limit, Limiter, Limits};

pub(crate) async fn run(args: ExecArgs, database: Database) -> Result<ExitCode, CliError> {
    let outcome = match hold(&args, database).await {
        Ok(outcome) => outcome,
        Err(error) => {
            output::note(&error);
            Outcome::Failure(Failure::of(&error))
        }
    };
    Ok(outcome.exit_code(&args))
}

async fn hold(args: &ExecArgs, database: Database) -> Result<Outcome, CliError> {
    let limits = limits(args)?;
    let key_secret = args.secret.read()?;
    let running = database.named()?;
    // From here on no signal ends this process before the slots are released.
    let mut signals = Signals::listen().map_err(CliError::failed)?;
    let limiter = tokio::select! {
        limiter = running.limiter(limits, key_secret) => limiter?,
        signal = signals.next() => return Ok(Outcome::Signal(signal.number())),
    };
    let lease = match acquire(&limiter, args, &mut signals).await? {
        Ok(lease) => lease.keep_renewed(),
        Err(outcome) => return Ok(outcome),
    };
    let outcome = work(args, &lease, &mut signals).await;
    release(lease, &limiter).await;
    Ok(outcome)
}

fn limits(args: &ExecArgs) -> Result<Limits, CliError> {
    match (&args.limits, args.slots) {
        (Some(path), _) => input::read_limits(path),
        (None, slots) => {
            let limit = Limit::concurrency(slots.unwrap_or_default()).lease(args.lease);
            Limits::new().define(args.name.as_str(), limit).map_err(CliError::usage)
        }
    }
}

async fn release(lease: Lease, limiter: &Limiter) {
    match lease.release().await {
        Ok(true) => {}
        Ok(false) => output::note("the lease was lost while the command ran: others may have held its slots"),
        Err(error) => output::note(format!("the slots are not released, and free when the lease ends: {error}")),
    }
    limiter.close().await;
}
