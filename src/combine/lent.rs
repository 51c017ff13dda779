//! The driver of a call that is alone runs in the task of its caller, so that the call wakes no other task. The caller may stop
//! polling it at any time: it becomes a task of its own as soon as anybody else needs the lanes, or the caller is gone.

use std::future::poll_fn;
use std::pin::Pin;
use std::sync::{Mutex, MutexGuard, PoisonError};

use tokio::runtime::Handle;
use tokio::sync::oneshot;
use tokio::sync::oneshot::error::RecvError;

/// The driver that a caller polls, if there is one.
#[derive(Default)]
pub(super) struct Lent(Mutex<Option<Driver>>);

struct Driver {
    run: Pin<Box<dyn Future<Output = ()> + Send>>,
    /// The runtime of the caller.
    runtime: Handle,
}

fn spawn(driver: Option<Driver>) {
    if let Some(Driver { run, runtime }) = driver {
        runtime.spawn(run);
    }
}

impl Lent {
    fn driver(&self) -> MutexGuard<'_, Option<Driver>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner) // A driver that panics is not in it.
    }

    /// Makes a lent driver a task, and calls `push`, which returns a driver if one has to be started, and whether to lend it.
    pub(super) fn start<E, D: Future<Output = ()> + Send + 'static>(
        &self,
        runtime: Handle,
        push: impl FnOnce() -> Result<Option<(D, bool)>, E>,
    ) -> Result<Borrowed<'_>, E> {
        let mut lent = self.driver(); // Until the new driver is in it, or another call could miss that one.
        spawn(lent.take());
        let started = push()?;
        let is_driving = matches!(started, Some((_, true)));
        *lent = started.map(|(driver, _)| Driver { run: Box::pin(driver), runtime });
        if !is_driving {
            spawn(lent.take());
        }
        Ok(Borrowed { lent: self, is_driving })
    }

    /// Makes a lent driver a task.
    pub(super) fn take_over(&self) {
        spawn(self.driver().take());
    }
}

/// The right of a waiting caller to poll the driver.
pub(super) struct Borrowed<'a> {
    lent: &'a Lent,
    is_driving: bool,
}

impl Borrowed<'_> {
    /// Waits for the answer, and polls the driver meanwhile, if it is lent.
    pub(super) async fn until<T>(mut self, mut answer: oneshot::Receiver<T>) -> Result<T, RecvError> {
        poll_fn(|context| {
            if self.is_driving {
                // It may be another caller's by now. Then no earlier call waits, so this one has its answer.
                let mut lent = self.lent.driver();
                *lent =
                    lent.take().and_then(|mut driver| driver.run.as_mut().poll(context).is_pending().then_some(driver));
                self.is_driving = lent.is_some();
            }
            Pin::new(&mut answer).poll(context)
        })
        .await
    }
}

impl Drop for Borrowed<'_> {
    fn drop(&mut self) {
        if self.is_driving {
            self.lent.take_over();
        }
    }
}
