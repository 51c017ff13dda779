//! The faults: what happens, at which point, and how often.

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use tokio::sync::Semaphore;

use crate::support::payloads::Payload;

/// A point in the conversation between client and server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Point {
    /// The start-up message.
    Connect,
    /// BEGIN, whatever follows in the same message.
    Begin,
    /// Preparing the limiter's statement.
    Prepare,
    /// The limiter's statement.
    Statement,
    /// The statement in which a worker claims jobs.
    Claim,
    /// COMMIT; or, if the limiter's statement is a transaction of its own, what follows its result.
    Commit,
    /// The empty commit that waits for the disk.
    Flush,
    /// The query with which a unit of work probes the transaction before it commits.
    Probe,
    /// Preparing a statement that takes an advisory lock.
    AdvisoryLock,
    /// The query for the engine's version.
    Version,
}

/// The kind of a fault at a point.
#[derive(Clone, Copy, Debug)]
pub enum Way {
    /// The request is not run, or rolled back, and answered with this error. FATAL closes the connection.
    Before(&'static Payload),
    /// The request is run, and then answered with this error.
    After(&'static Payload),
    /// The request is not run, or rolled back, and the connection is closed without a message.
    Drop,
    /// The request is run, and then the connection is closed without a message.
    Cut,
    /// The request is run later, even if the client does not wait any more.
    Delay(Duration),
    /// As `Delay`, until the test lets the request go.
    Hold,
    /// The request is run, and answered later.
    Late(Duration),
    /// A COMMIT is answered like that of a failed transaction: rolled back, and without an error.
    SaysRollback,
    /// This text replaces that of the server's answer.
    Says(&'static str),
}

#[derive(Clone, Copy, Debug)]
pub struct Fault {
    pub point: Point,
    pub way: Way,
    /// The number of occurrences that pass before the fault.
    pub skip: u32,
    /// How often the fault happens then.
    pub times: u32,
}

impl Fault {
    pub const fn once(point: Point, way: Way) -> Self {
        Self { point, way, skip: 0, times: 1 }
    }

    pub const fn always(point: Point, way: Way) -> Self {
        Self { point, way, skip: 0, times: u32::MAX }
    }
}

/// Random faults.
#[derive(Clone, Debug)]
pub struct Chaos {
    pub seed: u64,
    /// The number of faults in a thousand occurrences of a point in the menu.
    pub per_thousand: u64,
    pub menu: Vec<(Point, Way)>,
}

/// A reproducible pseudorandom number, good enough for choices.
pub fn xorshift(state: &mut u64) -> u64 {
    *state = (*state).max(1);
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    *state
}

/// How often each point occurred, including faults.
#[derive(Debug, Default)]
pub struct Seen {
    pub connects: AtomicU32,
    pub begins: AtomicU32,
    pub prepares: AtomicU32,
    pub statements: AtomicU32,
    /// COMMIT messages.
    pub commits: AtomicU32,
    pub flushes: AtomicU32,
    pub probes: AtomicU32,
    pub versions: AtomicU32,
    /// The number of faults.
    pub faults: AtomicU32,
}

/// The planned faults.
pub(super) struct Plan {
    pub(super) seen: Seen,
    /// A permit for each held request that may go on.
    pub(super) let_go: Semaphore,
    /// Requests under way.
    pub(super) busy: AtomicU32,
    faults: Mutex<Vec<Fault>>,
    chaos: Mutex<Option<Chaos>>,
}

impl Plan {
    pub(super) fn new() -> Self {
        Self {
            seen: Seen::default(),
            let_go: Semaphore::new(0),
            busy: AtomicU32::new(0),
            faults: Mutex::default(),
            chaos: Mutex::default(),
        }
    }

    /// Returns when the test lets a held request go.
    pub(super) async fn held(&self) {
        self.let_go.acquire().await.expect("never closed").forget();
    }

    pub(super) fn put(&self, fault: Fault) {
        self.faults.lock().unwrap_or_else(PoisonError::into_inner).push(fault);
    }

    pub(super) fn clear(&self) {
        self.faults.lock().unwrap_or_else(PoisonError::into_inner).clear();
        self.set_chaos(None);
    }

    pub(super) fn set_chaos(&self, chaos: Option<Chaos>) {
        *self.chaos.lock().unwrap_or_else(PoisonError::into_inner) = chaos;
    }

    pub(super) fn count(&self, point: Point, is_lone: bool) {
        let seen = &self.seen;
        let counter = match point {
            Point::Connect => &seen.connects,
            Point::Begin => &seen.begins,
            Point::Prepare => &seen.prepares,
            Point::Statement => &seen.statements,
            Point::Commit if is_lone => return,
            Point::Commit => &seen.commits,
            Point::Flush => &seen.flushes,
            Point::Probe => &seen.probes,
            Point::Version => &seen.versions,
            Point::Claim | Point::AdvisoryLock => return,
        };
        counter.fetch_add(1, Ordering::Relaxed);
    }

    /// The fault at this occurrence of the point, if any.
    pub(super) fn next(&self, point: Point) -> Option<Way> {
        let way = self.planned(point).or_else(|| self.random(point))?;
        self.seen.faults.fetch_add(1, Ordering::Relaxed);
        Some(way)
    }

    fn planned(&self, point: Point) -> Option<Way> {
        let mut faults = self.faults.lock().unwrap_or_else(PoisonError::into_inner);
        let fault = faults.iter_mut().find(|fault| fault.point == point && fault.times > 0)?;
        if fault.skip > 0 {
            fault.skip -= 1;
            return None;
        }
        fault.times -= 1;
        Some(fault.way)
    }

    fn random(&self, point: Point) -> Option<Way> {
        let mut chaos = self.chaos.lock().unwrap_or_else(PoisonError::into_inner);
        let chaos = chaos.as_mut()?;
        let ways: Vec<Way> = chaos.menu.iter().filter(|(at, _)| *at == point).map(|(_, way)| *way).collect();
        if ways.is_empty() || xorshift(&mut chaos.seed) % 1_000 >= chaos.per_thousand {
            return None;
        }
        let nth = xorshift(&mut chaos.seed) % ways.len() as u64;
        ways.get(usize::try_from(nth).expect("small")).copied()
    }
}
