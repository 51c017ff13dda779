//! Ctrl-C and SIGTERM.

/// Listens to Ctrl-C and SIGTERM from this call on; the future waits for one of them. So call it before the first output: a user or
/// a script may send a signal after it. A signal that arrives while nothing listens here has no effect, and has to be sent again.
#[cfg(unix)]
pub(crate) fn interrupt() -> impl Future<Output = ()> {
    use tokio::signal::unix::{Signal, SignalKind, signal};

    async fn received(signal: std::io::Result<Signal>) {
        match signal {
            Ok(mut signal) => drop(signal.recv().await),
            Err(_) => std::future::pending().await,
        }
    }

    let (pressed, ended) = (signal(SignalKind::interrupt()), signal(SignalKind::terminate()));
    async {
        tokio::select! {
            () = received(pressed) => {}
            () = received(ended) => {}
        }
    }
}

#[cfg(not(unix))]
pub(crate) async fn interrupt() {
    if tokio::signal::ctrl_c().await.is_err() {
        std::future::pending::<()>().await;
    }
}
