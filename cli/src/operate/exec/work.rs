//! Runs the command while the lease is held.

use std::time::{Duration, Instant};

use crate::operate::exec::args::{ExecArgs, Failure, OnLost, Outcome};
use crate::operate::exec::processes::Processes;
use crate::output;
use crate::signals::{Signals, TERM};
use pg_limiter::Lease;

/// The time after which a killed process is reported as one that cannot be killed.
const STUCK: Duration = Duration::from_secs(2);
/// The shortest time between two messages to the guard of the command.
const LEAST_BEAT: Duration = Duration::from_millis(100);

pub(super) async fn work(args: &ExecArgs, lease: &Lease, signals: &mut Signals) -> Outcome {
    // If this process is killed, at least two thirds of the lease are left in which the command ends.
    let grace = args.grace.min(lease.ends_in() / 3);
    let mut processes = match Processes::start(&args.command, lease.id(), grace) {
        Ok(processes) => processes,
        Err(error) => {
            output::note(format!("cannot start {}: {error}", args.command[0].to_string_lossy()));
            return Outcome::Failure(Failure::NotStarted);
        }
    };
    let mut end = End { grace: args.grace, kill_at: None, has_warned: false };
    // So early before its end a lease that is not renewed is given up, so that the command has ended by then.
    let early = if args.on_lost == OnLost::Stop { lease.ends_in() / 6 } else { Duration::ZERO };
    let mut beats = tokio::time::interval(early.max(LEAST_BEAT));
    let (mut is_lost, mut is_stopped) = (false, false);
    loop {
        processes.update(lease, early).await;
        if processes.is_over() {
            break;
        }
        end.advance(&mut processes);
        tokio::select! {
            biased;
            () = ends_soon(lease, early), if !is_lost => {
                is_lost = true;
                is_stopped = args.on_lost == OnLost::Stop && processes.status.is_none();
                if args.on_lost == OnLost::Stop {
                    end.stop(&mut processes, lease);
                } else {
                    output::note("the lease was lost, and the command goes on: others may hold the slots");
                }
            }
            signal = signals.next() => {
                processes.forward(signal);
                if signal == TERM {
                    end.begin(args.grace);
                }
            }
            () = processes.change() => {}
            () = end.due() => {}
            // If this process is stopped, the command ends when it would lose the lease.
            _ = beats.tick(), if !early.is_zero() && !is_lost => {
                processes.hold(lease.ends_in().saturating_sub(early).max(LEAST_BEAT));
            }
        }
    }
    let status = processes.status;
    processes.finish();
    status.filter(|_| !is_stopped).map_or(Outcome::Failure(Failure::Lost), Outcome::of_command)
}

struct End {
    grace: Duration,
    /// From then on, all are killed.
    kill_at: Option<Instant>,
    has_warned: bool,
}

impl End {
    fn begin(&mut self, grace: Duration) {
        let Some(at) = Instant::now().checked_add(grace) else { return };
        self.kill_at = Some(self.kill_at.map_or(at, |earlier| earlier.min(at)));
    }

    /// The lease is over, or nearly.
    fn stop(&mut self, processes: &mut Processes, lease: &Lease) {
        let (left, why) = match lease.ends_in() {
            Duration::ZERO => (Duration::MAX, "was lost"),
            left => (left, "is not renewed in time and ends soon"),
        };
        output::note(format!("the lease {why}: stopping the command"));
        self.begin(self.grace.min(left));
        processes.terminate();
    }

    /// What is left after the command has ended must end, too, and after the grace everything.
    fn advance(&mut self, processes: &mut Processes) {
        if processes.status.is_some() {
            processes.terminate_rest();
            self.begin(self.grace);
        }
        let Some(late) = self.kill_at.and_then(|at| Instant::now().checked_duration_since(at)) else { return };
        processes.kill();
        if late > STUCK && !self.has_warned {
            self.has_warned = true;
            let names = processes.names();
            output::note(format!(
                "cannot stop these processes of the command: {names}; the slots stay taken until they end"
            ));
        }
    }

    /// Returns at the time to kill, and never after it.
    async fn due(&self) {
        match self.kill_at {
            Some(at) if at > Instant::now() => tokio::time::sleep_until(at.into()).await,
            _ => std::future::pending().await,
        }
    }
}

async fn ends_soon(lease: &Lease, early: Duration) {
    loop {
        let left = lease.ends_in().saturating_sub(early);
        if left.is_zero() || tokio::time::timeout(left, lease.lost()).await.is_ok() {
            return;
        }
    }
}
