//! The counters of a soak, and the violations that it found.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use pg_limiter::{Decision, Error};
use tokio::sync::Notify;

use super::report::Event;

/// The number of violations that are shown. Further ones are only counted.
const SHOWN: u64 = 50;

/// Whether a call took its tokens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Taken {
    Yes,
    No,
    /// The outcome is unknown, so the count is right either way.
    Perhaps,
}

pub(super) struct Stats {
    show: Box<dyn Fn(Event<'_>) + Send + Sync>,
    decisions: AtomicU64,
    cancelled: AtomicU64,
    faults: AtomicU64,
    pruned: AtomicU64,
    audits: AtomicU64,
    violations: AtomicU64,
    errors: Mutex<BTreeMap<&'static str, u64>>,
    by_fault: Mutex<BTreeMap<&'static str, u64>>,
    stopped: AtomicBool,
    stopping: Notify,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The name of the error's kind, and whether the faults can cause it.
const fn kind(error: &Error) -> (&'static str, bool) {
    let explained = matches!(
        error,
        Error::Unavailable { .. }
            | Error::RetriesExhausted { .. }
            | Error::OutcomeUnknown { .. }
            | Error::Conflict { .. }
    );
    (error.code(), explained)
}

impl Stats {
    pub(super) fn new(show: impl Fn(Event<'_>) + Send + Sync + 'static) -> Self {
        Self {
            show: Box::new(show),
            decisions: AtomicU64::default(),
            cancelled: AtomicU64::default(),
            faults: AtomicU64::default(),
            pruned: AtomicU64::default(),
            audits: AtomicU64::default(),
            violations: AtomicU64::default(),
            errors: Mutex::default(),
            by_fault: Mutex::default(),
            stopped: AtomicBool::default(),
            stopping: Notify::default(),
        }
    }

    pub(super) fn show(&self, event: Event<'_>) {
        (self.show)(event);
    }

    pub(super) fn note(&self, note: &str) {
        self.show(Event::Note(note));
    }

    pub(super) fn decided(&self) {
        self.decisions.fetch_add(1, Ordering::Relaxed);
    }

    pub(super) fn cancelled(&self) {
        self.cancelled.fetch_add(1, Ordering::Relaxed);
    }

    pub(super) fn pruned(&self, rows: u64) {
        self.pruned.fetch_add(rows, Ordering::Relaxed);
    }

    pub(super) fn audited(&self) {
        self.audits.fetch_add(1, Ordering::Relaxed);
    }

    pub(super) fn injected(&self, fault: &'static str) {
        self.faults.fetch_add(1, Ordering::Relaxed);
        *lock(&self.by_fault).entry(fault).or_default() += 1;
    }

    /// Counts an error. Returns whether its call may have taken tokens.
    pub(super) fn failed(&self, error: &Error) -> Taken {
        let (kind, is_expected) = kind(error);
        *lock(&self.errors).entry(kind).or_default() += 1;
        if !is_expected {
            self.violated(format!("an error that the faults do not explain: {error}"));
        }
        if matches!(error, Error::OutcomeUnknown { .. }) { Taken::Perhaps } else { Taken::No }
    }

    pub(super) fn taken(&self, answer: &Result<Decision, Error>) -> Taken {
        match answer {
            Ok(decision) => {
                self.decided();
                if decision.is_denied() { Taken::No } else { Taken::Yes }
            }
            Err(error) => self.failed(error),
        }
    }

    pub(super) fn violated(&self, what: String) {
        if self.violations.fetch_add(1, Ordering::Relaxed) < SHOWN {
            self.show(Event::Violation(&what));
        }
    }

    pub(super) fn count(&self) -> Counts {
        let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        Counts {
            decisions: read(&self.decisions),
            cancelled: read(&self.cancelled),
            faults: read(&self.faults),
            pruned: read(&self.pruned),
            audits: read(&self.audits),
            violations: read(&self.violations),
            errors: lock(&self.errors).clone(),
            by_fault: lock(&self.by_fault).clone(),
        }
    }

    /// Stops the soak. Work in progress ends and is checked; no new work begins.
    pub(super) fn stop(&self) {
        self.stopped.store(true, Ordering::SeqCst);
        self.stopping.notify_waiters();
    }

    pub(super) fn is_stopped(&self) -> bool {
        self.stopped.load(Ordering::SeqCst)
    }

    /// Waits for this time or until the soak stops. Returns whether it continues.
    pub(super) async fn pause(&self, time: std::time::Duration) -> bool {
        let stopping = self.stopping.notified();
        if self.is_stopped() {
            return false;
        }
        tokio::select! {
            () = stopping => {}
            () = tokio::time::sleep(time) => {}
        }
        !self.is_stopped()
    }
}

pub(super) struct Counts {
    pub(super) decisions: u64,
    pub(super) cancelled: u64,
    pub(super) faults: u64,
    pub(super) pruned: u64,
    pub(super) audits: u64,
    pub(super) violations: u64,
    pub(super) errors: BTreeMap<&'static str, u64>,
    pub(super) by_fault: BTreeMap<&'static str, u64>,
}

#[test]
fn an_unexpected_error_is_a_violation() {
    let shown = std::sync::Arc::new(AtomicU64::new(0));
    let violations = std::sync::Arc::clone(&shown);
    let stats = Stats::new(move |event| {
        violations.fetch_add(matches!(event, Event::Violation(_)).into(), Ordering::Relaxed);
    });
    let failed = |source: sqlx::Error| stats.failed(&Error::Unavailable { source });
    assert_eq!((failed(sqlx::Error::PoolTimedOut), stats.count().violations), (Taken::No, 0));
    let unknown = Error::OutcomeUnknown { last: sqlx::Error::WorkerCrashed };
    assert_eq!((stats.failed(&unknown), stats.count().violations), (Taken::Perhaps, 0));
    assert_eq!((stats.failed(&Error::Closed), stats.count().violations), (Taken::No, 1));
    assert_eq!(shown.load(Ordering::Relaxed), 1);
}
