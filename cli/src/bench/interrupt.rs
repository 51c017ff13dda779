//! Ctrl-C and SIGTERM.

use std::future::pending;

/// Waits for Ctrl-C or SIGTERM. A signal that arrives while nothing waits here has no effect, and has to be sent again.
pub(crate) async fn interrupt() {
    tokio::select! {
        asked = tokio::signal::ctrl_c() => if asked.is_err() { pending::<()>().await },
        () = terminate() => {}
    }
}

#[cfg(unix)]
async fn terminate() {
    match tokio::signal::unix::signal(tokio::signal::unix::SignalKind::terminate()) {
        Ok(mut signal) => drop(signal.recv().await),
        Err(_) => pending().await,
    }
}

#[cfg(not(unix))]
async fn terminate() {
    pending().await
}
