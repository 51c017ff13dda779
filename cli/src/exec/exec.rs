use std::process::{ExitCode, ExitStatus};
use std::time::{Duration, Instant};

use tokio::process::{Child, Command};

use crate::database::Database;
use crate::error::CliError;
use crate::exec::args::{ExecArgs, OnLost};
use crate::progress::Progress;
use crate::signals::{Signals, kill, terminate};
use crate::{input, output, text};
use pg_limiter::{Item, Lease, Limit, Limiter, Limits};

/// The time between the requests to end and to be killed.
const GRACE: Duration = Duration::from_secs(10);
/// The longest pause between two attempts to get a slot. A holder may release its slots before its lease ends.
const LONGEST_PAUSE: Duration = Duration::from_secs(1);

const LOST: u8 = 124;
const NO_SLOT: u8 = 125;
const NOT_STARTED: u8 = 126;

pub(crate) async fn run(args: ExecArgs, database: Database) -> Result<ExitCode, CliError> {
    let limits = limits(&args)?;
    let key_secret = args.secret.read()?;
    let running = database.named()?;
    // Signals are forwarded from here on, so that none ends this process before the slots are released.
    let mut signals = Signals::listen().map_err(CliError::failed)?;
    let limiter = running.limiter(limits, key_secret).await?;

    let acquiring = acquire(&limiter, &args);
    let acquired = tokio::select! {
        acquired = acquiring => acquired?,
        signal = signals.next() => return Ok(ExitCode::from(128 + signal.number())),
    };
    let Some(lease) = acquired else { return Ok(ExitCode::from(NO_SLOT)) };
    let lease = lease.keep_renewed();
    let code = work(&args, &lease, &mut signals).await;
    match lease.release().await {
        Ok(true) => {}
        Ok(false) => output::note("the lease was lost while the command ran: others may have held its slots"),
        Err(error) => output::note(format!("the slots are not released, and free when the lease ends: {error}")),
    }
    limiter.close().await;
    Ok(code)
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

/// Takes the slots, or returns `None` if they are not free in time.
async fn acquire(limiter: &Limiter, args: &ExecArgs) -> Result<Option<Lease>, CliError> {
    let until = Instant::now() + args.wait.unwrap_or_default();
    let mut has_waited = false;
    let _progress = Progress::of(format!("waiting for a slot of \"{}\"", args.name));
    loop {
        let item = Item::new(args.name.as_str(), args.key.as_str()).count(args.count);
        let denied = match limiter.acquire(item).await?.into_lease() {
            Ok(lease) => return Ok(Some(lease)),
            Err(denied) => denied,
        };
        let left = until.saturating_duration_since(Instant::now());
        let retry_after = denied.retry_after().unwrap_or_default();
        if left.is_zero() {
            output::note(format!(
                "no slot of \"{}\" is free, but in {} at the latest",
                args.name,
                text::wait(retry_after)
            ));
            return Ok(None);
        }
        if !has_waited {
            output::note(format!("waiting for a slot of \"{}\"", args.name));
            has_waited = true;
        }
        // Not all at the same time.
        let pause = retry_after.min(LONGEST_PAUSE).mul_f64(0.5 + fastrand::f64() / 2.0).max(Duration::from_millis(10));
        tokio::time::sleep(pause.min(left)).await;
    }
}

/// Runs the command while the lease is held, and returns the exit code.
async fn work(args: &ExecArgs, lease: &Lease, signals: &mut Signals) -> ExitCode {
    let Some((program, rest)) = args.command.split_first() else { return ExitCode::from(NOT_STARTED) };
    let mut child = match Command::new(program).args(rest).env("PG_LIMITER_LEASE", lease.id().to_string()).spawn() {
        Ok(child) => child,
        Err(error) => {
            output::note(format!("cannot start {}: {error}", program.to_string_lossy()));
            return ExitCode::from(NOT_STARTED);
        }
    };
    let mut is_lost = false;
    loop {
        tokio::select! {
            ended = child.wait() => return ended.map_or(ExitCode::from(3), code),
            signal = signals.next() => signal.forward(&child),
            () = lease.lost(), if !is_lost => {
                is_lost = true;
                if args.on_lost == OnLost::Stop {
                    output::note("the lease was lost: stopping the command");
                    stop(&mut child).await;
                    return ExitCode::from(LOST);
                }
                output::note("the lease was lost, and the command goes on: others may hold the slots");
            }
        }
    }
}

async fn stop(child: &mut Child) {
    terminate(child);
    if tokio::time::timeout(GRACE, child.wait()).await.is_err() {
        kill(child).await;
    }
}

fn code(status: ExitStatus) -> ExitCode {
    #[cfg(unix)]
    if let Some(signal) = std::os::unix::process::ExitStatusExt::signal(&status) {
        return ExitCode::from(u8::try_from(128 + signal).unwrap_or(u8::MAX));
    }
    ExitCode::from(status.code().and_then(|code| u8::try_from(code).ok()).unwrap_or(u8::MAX))
}
