//! `exec`: runs a command while it holds slots of a concurrency limit.

mod args;
mod processes;
mod terminal;

use std::os::unix::process::CommandExt;
use std::process::{Command, ExitCode};
use std::time::{Duration, Instant};

use crate::signals::{Signals, TERM, exit_code};
use crate::{CliError, Database, Progress, Result, output, text};
pub(crate) use args::{EXEC_EXIT_CODES, ExecArgs};
use args::{Failure, OnLost, Outcome};
use pg_limiter::{Call, Decision, Error, Item, Lease, LeaseId, Limiter};
use processes::Processes;

pub(crate) async fn run(args: ExecArgs, database: &Database) -> Result<ExitCode> {
    let outcome = hold(&args, database).await.unwrap_or_else(|error| {
        output::note(&error);
        Outcome::Failure(if matches!(error, CliError::Usage(_)) { Failure::Invalid } else { Failure::Failed })
    });
    if matches!(outcome, Outcome::Interrupted) {
        // bash ends a script or a loop at Ctrl-C only if the program in it died of the signal. This process handles it: a shell dies.
        let _ = Command::new("/bin/sh").args(["-c", "kill -INT $$; exit 130"]).exec(); // If it fails, the exit code is all.
    }
    Ok(outcome.exit_code(&args))
}

async fn hold(args: &ExecArgs, database: &Database) -> Result<Outcome> {
    let limits = args.limits()?;
    let key_secret = args.secret.read()?;
    let running = database.named()?;
    // From here on no signal ends this process before the slots are released.
    let mut signals = Signals::listen().map_err(CliError::failed)?;
    let limiter = tokio::select! {
        limiter = running.limiter(limits, key_secret) => limiter?,
        signal = signals.next() => return Ok(Outcome::Code(exit_code(signal))),
    };
    let lease = match acquire(&limiter, args, &mut signals).await? {
        Ok(lease) => lease.keep_renewed(),
        Err(outcome) => return Ok(outcome),
    };
    let outcome = work(args, &lease, &mut signals).await;
    // The token of a run that may go on elsewhere, or that may have succeeded, stays spent.
    let failed = matches!(outcome, Outcome::Code(1..) | Outcome::Interrupted | Outcome::Failure(Failure::NotStarted));
    let (names, was_held) = (args.names(), !lease.ends_in().is_zero());
    match release(&limiter, args, lease, if failed { &names[..1] } else { &[] }).await {
        Ok(true) => {}
        Ok(false) if was_held => {
            let token =
                if failed && args.once_every.is_some() { ", and the token of the window stays spent" } else { "" };
            output::note(format!("the command has ended, and its lease ended before the slots were released{token}"));
        }
        Ok(false) => output::note("the lease was lost while the command ran: others may have held its slots"),
        Err(error) => output::note(format!("the slots are not released, and free when the lease ends: {error}")),
    }
    limiter.close().await;
    Ok(outcome)
}

/// Releases the slots, and returns these tokens if the slots were held: if not, another run may have begun. In one transaction.
async fn release(limiter: &Limiter, args: &ExecArgs, lease: Lease, names: &[String]) -> Result<bool, Error> {
    if args.once_every.is_none() || names.is_empty() {
        return lease.release().await;
    }
    let slots = Call::from(args.slots()).lease(lease.id());
    let tokens: Vec<Item> = names.iter().map(|name| args.token(name)).collect();
    let work = async |tx: &mut sqlx::PgConnection| {
        let was_held = limiter.within(tx).release(slots.clone()).await?;
        if was_held {
            limiter.within(tx).credit(tokens.clone()).await?;
        }
        Ok::<_, Error>(was_held)
    };
    limiter.transaction(work).await
}

/// The longest pause between two attempts to get a slot. A holder may release its slots before its lease ends.
const LONGEST_PAUSE: Duration = Duration::from_secs(1);
/// The longest wait for an answer of the database after a signal.
const PATIENCE: Duration = Duration::from_secs(10);

/// Takes the slots, or returns why it did not. A signal meanwhile leaves none taken.
async fn acquire(limiter: &Limiter, args: &ExecArgs, signals: &mut Signals) -> Result<Result<Lease, Outcome>> {
    let until = args.wait.and_then(|wait| Instant::now().checked_add(wait));
    let (name, mut has_waited) = (text::escaped(&args.name), false);
    let _progress = Progress::of(format!("waiting for a slot of \"{name}\""));
    loop {
        let denied = {
            let mut attempt = std::pin::pin!(attempt(limiter, args));
            tokio::select! {
                taken = &mut attempt => match taken.map_err(CliError::of_tokens)? {
                    Ok(lease) => return Ok(Ok(lease)),
                    Err(denied) => denied,
                },
                signal = signals.next() => {
                    give_back(limiter, args, attempt).await;
                    return Ok(Err(Outcome::Code(exit_code(signal))));
                }
            }
        };
        if let Some(outcome) = over(args, &denied) {
            return Ok(Err(outcome));
        }
        let left = until.map_or(Duration::ZERO, |until| until.saturating_duration_since(Instant::now()));
        let retry_after = denied.retry_after().unwrap_or_default();
        if left.is_zero() {
            let free = match args.once_every {
                // The wait is that of the window, which may be longer.
                Some(_) => ": it runs elsewhere, or the lease of a run that was cut off has not ended".to_owned(),
                None => format!(": a lease ends in {}, unless it is renewed", text::wait(retry_after)),
            };
            let of = if args.key.is_empty() { String::new() } else { format!(" for \"{}\"", text::escaped(&args.key)) };
            output::note(format!("no slot of \"{name}\"{of} is free{free}"));
            return Ok(Err(Outcome::Failure(Failure::NoSlot)));
        }
        if !has_waited {
            output::note(format!("waiting for a slot of \"{name}\""));
            has_waited = true;
        }
        // Not all at the same time.
        let pause = retry_after.min(LONGEST_PAUSE).mul_f64(0.5 + fastrand::f64() / 2.0).max(Duration::from_millis(10));
        tokio::select! {
            () = tokio::time::sleep(pause.min(left)) => {}
            signal = signals.next() => return Ok(Err(Outcome::Code(exit_code(signal)))),
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
    let [run, _] = args.names();
    let (failure, why) = if denied_by.contains(&run.as_str()) {
        (Failure::Done, "was run in this window, or the outcome of its run is not known".to_owned())
    } else {
        let attempts = match args.attempts() {
            1 => "its only attempt".to_owned(),
            attempts => format!("all of its {attempts} attempts"),
        };
        (Failure::Attempts, format!("has used {attempts} in this window"))
    };
    output::note(format!("\"{}\" {why}; the next window begins in {next}", text::escaped(&args.name)));
    Some(Outcome::Failure(failure))
}

type Attempt = Result<Result<Lease, Decision>, Error>;

async fn attempt(limiter: &Limiter, args: &ExecArgs) -> Attempt {
    let call = args.call(LeaseId::random());
    let acquired = limiter.acquire(call.clone()).await;
    if let Err(Error::OutcomeUnknown { .. }) = acquired {
        // This process ends before the library has done so in the background.
        let _ = tokio::time::timeout(PATIENCE, limiter.release(call)).await;
    }
    acquired.map(|acquired| acquired.into_lease())
}

/// Waits for the answer to an attempt, because a statement that is on its way may still take the slots, and releases them.
async fn give_back(limiter: &Limiter, args: &ExecArgs, attempt: impl Future<Output = Attempt>) {
    let giving_back = async {
        match attempt.await {
            Ok(Ok(lease)) => release(limiter, args, lease, &args.names()).await.is_ok(),
            answer => !matches!(answer, Err(Error::OutcomeUnknown { .. })),
        }
    };
    if !tokio::time::timeout(PATIENCE, giving_back).await.unwrap_or(false) {
        output::note("the database does not answer: a slot may be taken until its lease ends, and a token be spent");
    }
}

/// The time after which a killed process is reported as one that cannot be killed.
const STUCK: Duration = Duration::from_secs(2);
/// The shortest time between two messages to the guard of the command.
const LEAST_BEAT: Duration = Duration::from_millis(100);

async fn work(args: &ExecArgs, lease: &Lease, signals: &mut Signals) -> Outcome {
    // If this process is killed, at least two thirds of the lease are left in which the command ends.
    let grace = args.grace.min(lease.ends_in() / 3);
    let mut processes = match Processes::start(&args.command, lease.id(), grace) {
        Ok(processes) => processes,
        Err(error) => {
            let is_script = error.raw_os_error() == Some(rustix::io::Errno::NOEXEC.raw_os_error());
            let advice = if is_script { ": begin a script with a line such as #!/bin/sh" } else { "" };
            let program = text::one_line(&args.command[0].to_string_lossy());
            output::note(format!("cannot start {program}: {error}{advice}"));
            return Outcome::Failure(Failure::NotStarted);
        }
    };
    // From then on, all are killed.
    let mut kill_at = None;
    // So early before its end a lease that is not renewed is given up, so that the command has ended by then.
    let early = if args.on_lost == OnLost::Stop { lease.ends_in() / 6 } else { Duration::ZERO };
    let mut beats = tokio::time::interval(early.max(LEAST_BEAT));
    let (mut is_lost, mut is_stopped, mut has_warned) = (false, false, false);
    loop {
        processes.update(lease, early).await;
        if processes.is_over() {
            break;
        }
        // After the command, its other processes must end, too, and after the grace all of them.
        if processes.status.is_some() {
            processes.terminate_rest();
            kill_at = earlier(kill_at, args.grace);
        }
        if let Some(late) = kill_at.and_then(|at| Instant::now().checked_duration_since(at)) {
            processes.kill();
            if late > STUCK && !has_warned {
                has_warned = true;
                let (what, names) = ("cannot stop these processes of the command", processes.names());
                output::note(format!("{what}: {names}; the slots stay taken until they end"));
            }
        }
        tokio::select! {
            biased;
            () = ends_soon(lease, early), if !is_lost => {
                is_lost = true;
                is_stopped = args.on_lost == OnLost::Stop && processes.status.is_none();
                if args.on_lost == OnLost::Stop {
                    let (left, why) = match lease.ends_in() {
                        Duration::ZERO => (Duration::MAX, "was lost"),
                        left => (left, "is not renewed in time and ends soon"),
                    };
                    output::note(format!("the lease {why}: stopping the command"));
                    kill_at = earlier(kill_at, args.grace.min(left));
                    processes.terminate();
                } else {
                    output::note("the lease was lost, and the command goes on: others may hold the slots");
                }
            }
            signal = signals.next() => {
                processes.forward(signal);
                if signal == TERM {
                    kill_at = earlier(kill_at, args.grace);
                }
            }
            () = processes.change() => {}
            () = due(kill_at) => {}
            // If this process is stopped, the command ends when it would lose the lease.
            _ = beats.tick(), if !early.is_zero() && !is_lost => {
                processes.hold(lease.ends_in().saturating_sub(early).max(LEAST_BEAT));
            }
        }
    }
    let (ended_by_guard, outcome) = processes.finish();
    if ended_by_guard && !is_lost {
        output::note("the lease was not renewed in time: the command was stopped");
    }
    outcome.filter(|_| !is_stopped && !ended_by_guard).unwrap_or(Outcome::Failure(Failure::Lost))
}

/// The time after this grace, or the time that is set if it is earlier.
fn earlier(set: Option<Instant>, grace: Duration) -> Option<Instant> {
    set.into_iter().chain(Instant::now().checked_add(grace)).min()
}

/// Returns at the time, and never after it.
async fn due(at: Option<Instant>) {
    match at {
        Some(at) if at > Instant::now() => tokio::time::sleep_until(at.into()).await,
        _ => std::future::pending().await,
    }
}

async fn ends_soon(lease: &Lease, early: Duration) {
    let left = || lease.ends_in().saturating_sub(early);
    while !left().is_zero() && tokio::time::timeout(left(), lease.lost()).await.is_err() {}
}
