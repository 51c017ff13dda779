//! Ctrl-C, and the signal that ends a process in an orderly way.

use std::future::pending;

/// Waits for it. Who is not waiting any more has to be asked twice.
pub(super) async fn interrupt() {
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
