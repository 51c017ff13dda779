use std::pin::pin;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use crate::database::Database;
use crate::error::CliError;
use crate::exec::args::{ExecArgs, Failure, Outcome};
use crate::exec::once;
use crate::exec::work::work;
use crate::output::{self, Progress};
use crate::signals::Signals;
use crate::{input, text};
use pg_limiter::{Decision, Error, Lease, LeaseId, Limit, Limiter, Limits};

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

/// The longest pause between two attempts to get a slot. A holder may release its slots before its lease ends.
const LONGEST_PAUSE: Duration = Duration::from_secs(1);
/// The longest wait for an answer of the database after a signal.
const PATIENCE: Duration = Duration::from_secs(10);

/// Takes the slots, or returns why it did not. A signal meanwhile leaves none taken.
pub(super) async fn acquire(
    limiter: &Limiter,
    args: &ExecArgs,
    signals: &mut Signals,
) -> Result<Result<Lease, Outcome>, CliError> {
    let until = args.wait.and_then(|wait| Instant::now().checked_add(wait));
    let mut has_waited = false;
    let _progress = Progress::of(format!("waiting for a slot of \"{}\"", args.name));
    loop {
        let denied = {
            let mut attempt = pin!(attempt(limiter, args));
            tokio::select! {
                taken = &mut attempt => match taken? {
                    Ok(lease) => return Ok(Ok(lease)),
                    Err(denied) => denied,
                },
                signal = signals.next() => {
                    give_back(limiter, args, attempt).await;
                    return Ok(Err(Outcome::Signal(signal.number())));
                }
            }
        };
        if let Some(outcome) = over(args, &denied) {
            return Ok(Err(outcome));
        }
        let left = until.map_or(Duration::ZERO, |until| until.saturating_duration_since(Instant::now()));
        let retry_after = denied.retry_after().unwrap_or_default();
        if left.is_zero() {
            output::note(format!(
                "no slot of \"{}\" is free, but in {} at the latest",
                args.name,
                text::wait(retry_after)
            ));
            return Ok(Err(Outcome::Failure(Failure::NoSlot)));
        }
        if !has_waited {
            output::note(format!("waiting for a slot of \"{}\"", args.name));
            has_waited = true;
        }
        // Not all at the same time.
        let pause = retry_after.min(LONGEST_PAUSE).mul_f64(0.5 + fastrand::f64() / 2.0).max(Duration::from_millis(10));
        tokio::select! {
            () = tokio::time::sleep(pause.min(left)) => {}
            signal = signals.next() => return Ok(Err(Outcome::Signal(signal.number()))),
        }
    }
}

/// The reason why waiting for a slot is in vain: the window is over for this command.
fn over(args: &ExecArgs, denied: &Decision) -> Option<Outcome> {
    let denied_by = denied.denied_by();
    if args.once_every.is_none() || denied_by.contains(&args.name.as_str()) {
        return None;
    }
    let next = text::wait(denied.retry_after().unwrap_or_default());
    let (failure, why) = if denied_by.contains(&once::run_name(args).as_str()) {
        (Failure::Done, "was run in this window, or the outcome of its run is not known".to_owned())
    } else {
        (Failure::Attempts, format!("has failed in all of its {} attempts in this window", args.attempts))
    };
    output::note(format!("\"{}\" {why}; the next window begins in {next}", args.name));
    Some(Outcome::Failure(failure))
}

async fn attempt(limiter: &Limiter, args: &ExecArgs) -> Result<Result<Lease, Decision>, Error> {
    let call = once::call(args, LeaseId::random());
    match limiter.acquire(call.clone()).await {
        Ok(acquired) => Ok(acquired.into_lease()),
        Err(error) => {
            if matches!(error, Error::OutcomeUnknown { .. }) {
                // This process ends before the library has done so in the background.
                let _ = tokio::time::timeout(PATIENCE, limiter.release(call)).await;
            }
            Err(error)
        }
    }
}

/// Waits for the answer to an attempt, because a statement that is on its way may still take the slots, and releases them.
async fn give_back(
    limiter: &Limiter,
    args: &ExecArgs,
    attempt: impl Future<Output = Result<Result<Lease, Decision>, Error>>,
) {
    let giving_back = async {
        match attempt.await {
            Ok(Ok(lease)) if args.once_every.is_none() => lease.release().await.is_ok(),
            Ok(Ok(lease)) => {
                let tokens = [once::run_name(args), once::attempts_name(args)];
                once::give_back(limiter, args, lease.id(), &tokens).await.is_ok()
            }
            Ok(Err(_)) => true,
            Err(error) => !matches!(error, Error::OutcomeUnknown { .. }),
        }
    };
    if !tokio::time::timeout(PATIENCE, giving_back).await.unwrap_or(false) {
        output::note("the database does not answer: a slot may be taken until its lease ends, and a token be spent");
    }
}
