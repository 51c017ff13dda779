//! Signals that end the tool, or are passed on to its command.

#[cfg(not(unix))]
pub(super) use other::{Received, Signals};
#[cfg(unix)]
pub(super) use unix::{Received, Signals};

/// Listens to Ctrl-C and SIGTERM from this call on; the future waits for one of them. So call it before the first output: a user or
/// a script may send a signal after it. A signal that arrives while nothing listens here has no effect, and has to be sent again.
pub(super) fn interrupt() -> impl Future<Output = ()> {
    let signals = Signals::of_interrupt();
    async {
        match signals {
            Ok(mut signals) => drop(signals.next().await),
            Err(_) => std::future::pending().await,
        }
    }
}

#[cfg(unix)]
mod unix {
    use std::future::poll_fn;
    use std::io;
    use std::task::Poll;

    use rustix::process::Signal;
    use tokio::signal::unix::{SignalKind, signal};

    pub(crate) struct Signals(Vec<(Signal, tokio::signal::unix::Signal)>);

    #[derive(Clone, Copy)]
    pub(crate) struct Received(pub(crate) Signal);

    impl Signals {
        /// The signals that end a process.
        pub(crate) fn listen() -> io::Result<Self> {
            use Signal as S;
            Self::of(&[S::TERM, S::HUP, S::INT, S::QUIT, S::USR1, S::USR2])
        }

        pub(crate) fn of_interrupt() -> io::Result<Self> {
            Self::of(&[Signal::INT, Signal::TERM])
        }

        pub(crate) fn of(signals: &[Signal]) -> io::Result<Self> {
            let listen = |kind: &Signal| Ok((*kind, signal(SignalKind::from_raw(kind.as_raw()))?));
            signals.iter().map(listen).collect::<io::Result<_>>().map(Self)
        }

        /// # Cancel safety
        /// Safe: no signal is lost.
        pub(crate) async fn next(&mut self) -> Received {
            poll_fn(|cx| {
                let received = self.0.iter_mut().find_map(|(kind, signal)| match signal.poll_recv(cx) {
                    Poll::Ready(_) => Some(Received(*kind)),
                    Poll::Pending => None,
                });
                received.map_or(Poll::Pending, Poll::Ready)
            })
            .await
        }
    }

    impl Received {
        pub(crate) fn number(self) -> u8 {
            u8::try_from(self.0.as_raw()).unwrap_or_default()
        }

        pub(crate) fn is_term(self) -> bool {
            self.0 == Signal::TERM
        }
    }
}

#[cfg(not(unix))]
mod other {
    use std::io;

    /// Only Ctrl-C.
    pub(crate) struct Signals;

    #[derive(Clone, Copy)]
    pub(crate) struct Received;

    impl Signals {
        pub(crate) fn listen() -> io::Result<Self> {
            Ok(Self)
        }

        pub(crate) fn of_interrupt() -> io::Result<Self> {
            Ok(Self)
        }

        pub(crate) async fn next(&mut self) -> Received {
            if tokio::signal::ctrl_c().await.is_err() {
                std::future::pending::<()>().await;
            }
            Received
        }
    }

    impl Received {
        pub(crate) fn number(self) -> u8 {
            2
        }

        pub(crate) fn is_term(self) -> bool {
            false
        }
    }
}
