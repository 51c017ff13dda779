//! With the feature `testing`, a `TestClock` advances the clock of this process with the database's.

use std::collections::HashMap;
use std::future::{Future, poll_fn};
use std::path::PathBuf;
use std::pin::pin;
use std::sync::{Arc, LazyLock, Mutex, PoisonError, Weak};
use std::task::Poll;
use std::time::{Duration, Instant};

use sqlx::PgPool;
use tokio::sync::watch;

use super::{Advances, LocalClock, PinnedClock};

/// How far this process has advanced a clock.
pub(super) type Advanced = watch::Sender<Duration>;

/// The address of a server, a database and a schema.
#[derive(Debug, PartialEq, Eq, Hash)]
struct Address {
    host: String,
    port: u16,
    socket: Option<PathBuf>,
    database: String,
    schema: String,
}

/// The clocks of this process. Each is kept by the handles that use it.
static CLOCKS: LazyLock<Mutex<HashMap<Address, Weak<Advanced>>>> = LazyLock::new(Mutex::default);

impl LocalClock {
    /// Returns the clock of this schema, shared with all pools that connect to the same address.
    pub(crate) fn of(pool: &PgPool, schema: &str) -> Self {
        let options = pool.connect_options();
        let host = match options.get_host() {
            "127.0.0.1" | "::1" => "localhost",
            other => other,
        };
        let address = Address {
            host: host.to_owned(),
            port: options.get_port(),
            socket: options.get_socket().cloned(),
            database: options.get_database().unwrap_or_else(|| options.get_username()).to_owned(),
            schema: schema.to_owned(),
        };
        let mut clocks = CLOCKS.lock().unwrap_or_else(PoisonError::into_inner); // Nothing in it is ever half-done.
        clocks.retain(|_, clock| clock.strong_count() > 0);
        let clock = clocks.entry(address).or_default();
        let advanced = clock.upgrade().unwrap_or_default();
        *clock = Arc::downgrade(&advanced);
        Self { advanced }
    }

    /// Moves the clock of this process forward, and wakes what sleeps by it.
    pub(crate) fn advance(&self, by: Duration) {
        self.advanced.send_modify(|ahead| *ahead = ahead.saturating_add(by));
    }

    pub(crate) fn pinned(&self) -> PinnedClock {
        PinnedClock { ahead: *self.advanced.borrow() }
    }

    pub(crate) async fn sleep_until(&self, moment: Instant) {
        let mut advanced = self.advanced.subscribe();
        loop {
            let now = PinnedClock { ahead: *advanced.borrow_and_update() }.now();
            let left = moment.saturating_duration_since(now);
            if left.is_zero() {
                return;
            }
            let _ = tokio::time::timeout(left, advanced.changed()).await; // In both cases, look again.
        }
    }

    pub(crate) async fn timeout_at<F: Future + Send>(&self, moment: Instant, future: F) -> Option<F::Output> {
        let (mut future, mut end) = (pin!(future), pin!(self.sleep_until(moment)));
        poll_fn(|cx| match future.as_mut().poll(cx) {
            Poll::Ready(output) => Poll::Ready(Some(output)),
            Poll::Pending => end.as_mut().poll(cx).map(|()| None),
        })
        .await
    }

    pub(crate) fn advances(&self) -> Advances {
        Advances { advanced: self.advanced.subscribe() }
    }
}

impl PinnedClock {
    pub(crate) fn now(self) -> Instant {
        let now = Instant::now();
        now.checked_add(self.ahead).unwrap_or(now)
    }
}

impl Advances {
    pub(crate) async fn next(&mut self) {
        if self.advanced.changed().await.is_err() {
            std::future::pending().await // The clock's last handle is gone.
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HOUR: Duration = Duration::from_secs(3600);

    fn clock(url: &str, schema: &str) -> LocalClock {
        let pool = sqlx::postgres::PgPoolOptions::new().connect_lazy(url).expect("a URL");
        LocalClock::of(&pool, schema)
    }

    #[tokio::test]
    async fn an_advance_wakes_the_sleepers_of_its_schema_only() {
        let url = "postgres://u@localhost:1/test_local_clock";
        let (clock, same) =
            (self::clock(url, "rate_limit"), self::clock(&url.replace("localhost", "127.0.0.1"), "rate_limit"));
        let others = [self::clock(url, "b"), self::clock("postgres://u@localhost:1/other", "rate_limit")];
        let (moment, before) = (same.now() + 2 * HOUR, same.pinned());
        let mut advances = same.advances();
        let sleeper = same.clone();
        let sleeping = tokio::spawn(async move { sleeper.sleep_until(moment).await });
        clock.advance(HOUR);
        advances.next().await;
        assert!(same.now() < moment && !sleeping.is_finished(), "an hour is left");
        assert!(same.timeout_at(same.now(), std::future::pending::<()>()).await.is_none());
        clock.advance(HOUR);
        sleeping.await.expect("woken");
        assert!(before.now() < moment, "a pinned clock is not advanced");
        assert!(others.iter().all(|other| other.now() < moment));
    }
}
