//! The signal to stop.

/// Waits for the signal to stop: SIGTERM, which Kubernetes, systemd and `docker stop` send, or SIGINT, which is Ctrl-C. On other
/// systems than Unix, only Ctrl-C. For [`Worker::run`](crate::queue::Worker::run), and for servers that shut down
/// gracefully.
///
/// From its first poll on, these signals no longer end the process.
///
/// # Errors
/// None.
///
/// # Cancel safety
/// Safe.
///
/// # In a transaction
/// It does not touch the database.
pub async fn stop_signal() {
    #[cfg(unix)]
    {
        use std::future::poll_fn;
        use std::pin::pin;
        use std::task::Poll;
        use tokio::signal::unix::{SignalKind, signal};

        let mut interrupted = pin!(interrupted());
        let Ok(mut terminated) = signal(SignalKind::terminate()) else { return interrupted.await };
        poll_fn(|cx| match (interrupted.as_mut().poll(cx), terminated.poll_recv(cx)) {
            (Poll::Pending, Poll::Pending) => Poll::Pending,
            _ => Poll::Ready(()),
        })
        .await;
    }
    #[cfg(not(unix))]
    interrupted().await;
}

/// A signal that cannot be awaited ends the process, as if nothing waited for it.
async fn interrupted() {
    if tokio::signal::ctrl_c().await.is_err() {
        std::future::pending().await
    }
}
