//! Signals, and how to pass them on to the command.

use tokio::process::Child;

#[cfg(not(unix))]
pub(super) use other::{Signals, terminate};
#[cfg(unix)]
pub(super) use unix::{Signals, terminate};

pub(super) async fn kill(child: &mut Child) {
    let _ = child.kill().await; // It fails if the command has ended.
}

#[cfg(unix)]
mod unix {
    use std::future::poll_fn;
    use std::io::{self, IsTerminal};
    use std::task::Poll;

    use rustix::process::{self, Pid};
    use tokio::process::Child;
    use tokio::signal::unix::{SignalKind, signal};

    /// The signals that are passed on.
    pub(crate) struct Signals(Vec<(process::Signal, tokio::signal::unix::Signal)>);

    #[derive(Clone, Copy)]
    pub(crate) struct Signal(process::Signal);

    impl Signals {
        pub(crate) fn listen() -> io::Result<Self> {
            use process::Signal as S;
            [S::TERM, S::HUP, S::INT, S::QUIT, S::USR1, S::USR2]
                .into_iter()
                .map(|kind| Ok((kind, signal(SignalKind::from_raw(kind.as_raw()))?)))
                .collect::<io::Result<_>>()
                .map(Self)
        }

        /// # Cancel safety
        /// Safe: no signal is lost.
        pub(crate) async fn next(&mut self) -> Signal {
            poll_fn(|cx| {
                for (kind, signal) in &mut self.0 {
                    if signal.poll_recv(cx).is_ready() {
                        return Poll::Ready(Signal(*kind));
                    }
                }
                Poll::Pending
            })
            .await
        }
    }

    impl Signal {
        pub(crate) fn number(self) -> u8 {
            u8::try_from(self.0.as_raw()).unwrap_or_default()
        }

        /// Sends it to the command, unless the terminal has done so.
        pub(crate) fn forward(self, child: &Child) {
            let from_terminal =
                [process::Signal::INT, process::Signal::QUIT].contains(&self.0) && io::stdin().is_terminal();
            if !from_terminal {
                send(child, self.0);
            }
        }
    }

    pub(crate) fn terminate(child: &mut Child) {
        send(child, process::Signal::TERM);
    }

    fn send(child: &Child, signal: process::Signal) {
        let pid = child.id().and_then(|id| i32::try_from(id).ok()).and_then(Pid::from_raw);
        if let Some(pid) = pid {
            let _ = process::kill_process(pid, signal); // It fails if the command has ended.
        }
    }
}

#[cfg(not(unix))]
mod other {
    use std::io;

    use tokio::process::Child;

    /// Only Ctrl-C.
    pub(crate) struct Signals;

    #[derive(Clone, Copy)]
    pub(crate) struct Signal;

    impl Signals {
        pub(crate) fn listen() -> io::Result<Self> {
            Ok(Self)
        }

        pub(crate) async fn next(&mut self) -> Signal {
            if tokio::signal::ctrl_c().await.is_err() {
                std::future::pending::<()>().await;
            }
            Signal
        }
    }

    impl Signal {
        pub(crate) fn number(self) -> u8 {
            2
        }

        /// The console sends Ctrl-C to the command, too.
        pub(crate) fn forward(self, _child: &Child) {}
    }

    pub(crate) fn terminate(child: &mut Child) {
        let _ = child.start_kill();
    }
}
