//! Signals that end the tool, or are passed on to its command.

#[cfg(not(unix))]
pub(super) use pg_limiter::queue::stop_signal as interrupt;
#[cfg(unix)]
pub(super) use unix::{Signals, interrupt};

pub(super) const TERM: i32 = 15;

/// The exit code of a process that the signal of this number ended.
pub(super) fn exit_code(signal: i32) -> u8 {
    u8::try_from(128 + signal).unwrap_or(u8::MAX)
}

#[cfg(unix)]
mod unix {
    use std::future::poll_fn;
    use std::io;
    use std::task::Poll;

    use rustix::process::Signal;
    use tokio::signal::unix::{SignalKind, signal};

    pub(crate) struct Signals(Vec<(Signal, tokio::signal::unix::Signal)>);

    impl Signals {
        /// The signals that end a process and are not about a fault in it: those of users, timers, limits and the machine.
        pub(crate) fn listen() -> io::Result<Self> {
            let of_users = [Signal::TERM, Signal::HUP, Signal::INT, Signal::QUIT, Signal::USR1, Signal::USR2];
            let timers_and_limits = [Signal::ALARM, Signal::VTALARM, Signal::PROF, Signal::XCPU];
            let signals = [&of_users[..], &timers_and_limits, &[Signal::ABORT, Signal::SYS]].concat();
            #[cfg(target_os = "linux")]
            let signals = [&signals[..], &[Signal::IO, Signal::POWER]].concat();
            Self::of(&signals)
        }

        /// These signals, without those that were ignored when this process was started, as `nohup` does, or a shell for what it
        /// starts in the background: they stay ignored, also by a command.
        pub(crate) fn of(signals: &[Signal]) -> io::Result<Self> {
            let ignored = ignored();
            // These two only report a change.
            let is_heard = |kind: &&Signal| {
                [Signal::CHILD, Signal::CONT].contains(kind) || ignored >> (kind.as_raw() - 1) & 1 == 0
            };
            let listen = |kind: &Signal| Ok((*kind, signal(SignalKind::from_raw(kind.as_raw()))?));
            signals.iter().filter(is_heard).map(listen).collect::<io::Result<_>>().map(Self)
        }

        /// The number of the next signal. Cancel safe: no signal is lost.
        pub(crate) async fn next(&mut self) -> i32 {
            poll_fn(|cx| {
                let mut ready =
                    self.0.iter_mut().filter_map(|(kind, signal)| signal.poll_recv(cx).is_ready().then_some(*kind));
                ready.next().map_or(Poll::Pending, |kind| Poll::Ready(kind.as_raw()))
            })
            .await
        }
    }

    /// Listens to Ctrl-C, SIGTERM and SIGHUP from this call on; the future waits for one of them. So call it before the first output:
    /// a user or a script may send a signal after it, and a signal that arrives while nothing listens here has no effect.
    pub(crate) fn interrupt() -> impl Future<Output = ()> {
        let signals = Signals::of(&[Signal::INT, Signal::TERM, Signal::HUP]);
        async {
            match signals {
                Ok(mut signals) => drop(signals.next().await),
                Err(_) => std::future::pending().await,
            }
        }
    }

    /// The signals that this process ignores, a bit for each. Only Linux reports them.
    fn ignored() -> u64 {
        let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
        let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
        mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).unwrap_or_default()
    }
}
