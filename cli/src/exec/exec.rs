use std::process::ExitCode;

use crate::database::Database;
use crate::error::CliError;
use crate::exec::acquire::acquire;
use crate::exec::args::ExecArgs;
use crate::exec::once;
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
    // The token of a run that may go on elsewhere, or that may have succeeded, stays spent.
    let failed = match &outcome {
        Outcome::Ended(status) => !status.success(),
        Outcome::Failure(failure) => *failure == Failure::NotStarted,
        Outcome::Signal(_) => true,
    };
    let returned = if failed && args.once_every.is_some() { vec![once::run_name(args)] } else { Vec::new() };
    release(args, lease, &limiter, &returned).await;
    Ok(outcome)
}

fn limits(args: &ExecArgs) -> Result<Limits, CliError> {
    match (&args.limits, args.once_every) {
        (Some(path), _) => input::read_limits(path),
        (None, Some(every)) => once::limits(args, every),
        (None, None) => {
            let limit = Limit::concurrency(args.slots.unwrap_or_default()).lease(args.lease);
            Limits::new().define(args.name.as_str(), limit).map_err(CliError::usage)
        }
    }
}

/// Gives the slots back, and with them the tokens of these limits.
async fn release(args: &ExecArgs, lease: Lease, limiter: &Limiter, returned: &[String]) {
    let released = match returned {
        [] => lease.release().await,
        _ => once::give_back(limiter, args, lease.id(), returned).await,
    };
    match released {
        Ok(true) => {}
        Ok(false) => output::note("the lease was lost while the command ran: others may have held its slots"),
        Err(error) => output::note(format!("the slots are not released, and free when the lease ends: {error}")),
    }
    limiter.close().await;
}
