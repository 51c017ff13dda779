//! Slots of a concurrency limit, each taken together with a token. At no time may leases hold more slots than there are, and in
//! the end all slots must be free, whatever happened to their holders.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use fastrand::Rng;
use pg_limiter::{Call, Error, Item, Lease, LeaseId, Limit};
use tokio::task::JoinSet;

use super::call::{End, in_transaction};
use super::round::{Books, TOLERANCE, audited};
use super::setup::{SLOTS, SoakSetup, WITH_SLOTS};
use super::stats::{Stats, Taken};

/// The calls of each caller in a round.
const CALLS: u32 = 30;
/// Clocks of two machines do not run equally fast.
const DRIFT: f64 = 0.999;

/// The callers' count of the slots and tokens of a key.
#[derive(Default)]
struct Ledger {
    held: Vec<Held>,
    tokens: Books,
}

/// Slots that a lease certainly holds until then.
struct Held {
    lease: LeaseId,
    count: f64,
    until: Instant,
}

impl Ledger {
    /// Adds slots, and returns how many are certainly held now.
    fn take(&mut self, lease: LeaseId, count: f64, until: Instant) -> f64 {
        self.tokens.admitted += 1.0;
        self.held.push(Held { lease, count, until });
        let now = Instant::now();
        self.held.retain(|held| held.until > now);
        self.held.iter().map(|held| held.count).sum()
    }

    /// The lease may end from now on.
    fn give_back(&mut self, lease: LeaseId) {
        self.held.retain(|held| held.lease != lease);
    }
}

/// A round on one key.
struct Round {
    setup: Arc<SoakSetup>,
    stats: Arc<Stats>,
    limit: Limit,
    key: String,
    ledger: Mutex<Ledger>,
}

/// A holder of slots: with a handle, or with the id of a lease that was taken in a transaction.
enum Holder {
    Handle(Lease),
    Id(LeaseId),
}

pub(super) async fn slots(setup: Arc<SoakSetup>, stats: Arc<Stats>, callers: u32, mut dice: Rng) {
    let (Some(limit), Some(tokens)) = (setup.of(SLOTS).copied(), setup.of(WITH_SLOTS).copied()) else { return };
    for nth in 1_u64.. {
        let round = Arc::new(Round {
            setup: Arc::clone(&setup),
            stats: Arc::clone(&stats),
            limit,
            key: format!("{SLOTS} {nth}"),
            ledger: Mutex::default(),
        });
        let mut tasks = JoinSet::new();
        for _ in 0..callers {
            tasks.spawn(Arc::clone(&round).caller(dice.fork()));
        }
        while let Some(joined) = tasks.join_next().await {
            if let Err(error) = joined {
                stats.violated(format!("{}: a caller panicked: {error}", round.key));
            }
        }
        let books = round.ledger().tokens;
        let wrong = |spent: &[f64]| {
            let [slots, spent] = spent else { return None };
            let held = (slots.abs() > TOLERANCE).then(|| format!("{slots} slots are held after all leases have ended"));
            held.or_else(|| books.wrong(*spent, tokens.capacity()))
        };
        match audited(&setup, &round.items(1), &[limit.capacity(), tokens.capacity()], wrong).await {
            Ok(None) => stats.audited(),
            Ok(Some(wrong)) => stats.violated(format!("{}: {wrong}", round.key)),
            Err(error) => stats.violated(format!("{}: the slots could not be read: {error}", round.key)),
        }
        if let Err(error) = setup.audit().reset(round.items(1)).await {
            stats.violated(format!("{}: the rows could not be removed: {error}", round.key));
        }
        if !stats.pause(Duration::from_millis(dice.usize(..100) as u64)).await {
            return;
        }
    }
}

impl Round {
    fn items(&self, slots: u32) -> [Item; 2] {
        [self.setup.item(SLOTS, &self.key).count(slots), self.setup.item(WITH_SLOTS, &self.key)]
    }

    fn ledger(&self) -> MutexGuard<'_, Ledger> {
        self.ledger.lock().unwrap_or_else(PoisonError::into_inner)
    }

    async fn caller(self: Arc<Self>, mut dice: Rng) {
        for _ in 0..CALLS {
            if self.stats.is_stopped() {
                return;
            }
            let count = 1 + dice.usize(..2) as u32;
            let asked = Instant::now();
            match self.acquire(&mut dice, count).await {
                Ok(Some(holder)) => {
                    let until = asked + self.limit.period().mul_f64(DRIFT);
                    let held = self.ledger().take(holder.lease(), count.into(), until);
                    if held > self.limit.capacity() {
                        self.stats.violated(format!(
                            "{}: {held} slots of {} are held",
                            self.key,
                            self.limit.capacity()
                        ));
                    }
                    self.stats.pause(Duration::from_millis(dice.usize(..20) as u64)).await;
                    self.end(&mut dice, holder).await;
                }
                Ok(None) => drop(self.stats.pause(Duration::from_millis(dice.usize(..20) as u64)).await),
                Err(Taken::No) => {}
                Err(_) => self.ledger().tokens.perhaps += 1.0,
            }
        }
    }

    /// Takes slots and a token, or neither.
    async fn acquire(&self, dice: &mut Rng, count: u32) -> Result<Option<Holder>, Taken> {
        let (setup, stats) = (&self.setup, &self.stats);
        let failed = |error: Error| stats.failed(&error);
        let lease = LeaseId::random();
        match dice.usize(..10) {
            0..6 => {
                let acquired = setup.any_limiter(dice).acquire(self.items(count)).await.map_err(failed)?;
                stats.decided();
                Ok(acquired.into_lease().ok().map(Holder::Handle))
            }
            6 => {
                let call = setup.any_limiter(dice).acquire(self.items(count));
                let Ok(acquired) = tokio::time::timeout(Duration::from_micros(dice.usize(..8000) as u64), call).await
                else {
                    stats.cancelled();
                    return Err(Taken::Perhaps);
                };
                stats.decided();
                Ok(acquired.map_err(failed)?.into_lease().ok().map(Holder::Handle))
            }
            7 | 8 => {
                let call = Call::from(self.items(count)).lease(lease);
                let decision = in_transaction(setup, dice, call, End::Commit, "").await.map_err(failed)?;
                stats.decided();
                Ok(decision.is_allowed().then_some(Holder::Id(lease)))
            }
            _ => {
                let call = Call::from(self.items(count)).lease(lease);
                match in_transaction(setup, dice, call, End::Rollback, "").await {
                    Ok(_) => stats.decided(),
                    // No COMMIT was sent, so nothing was taken.
                    Err(error) => drop(stats.failed(&error)),
                }
                Err(Taken::No)
            }
        }
    }

    /// Releases the slots, or leaves them to the end of the lease, as a holder that dies.
    async fn end(&self, dice: &mut Rng, holder: Holder) {
        let lease = holder.lease();
        let limiter = self.setup.any_limiter(dice);
        let call = || Call::from(self.items(1)).lease(lease);
        if dice.usize(..4) == 0 {
            let renewed = match &holder {
                Holder::Handle(handle) => handle.renew().await,
                Holder::Id(_) => limiter.renew(call()).await,
            };
            match renewed {
                Ok(_) => self.stats.decided(),
                Err(error) => drop(self.stats.failed(&error)),
            }
        }
        if dice.usize(..8) == 0 && matches!(holder, Holder::Id(_)) {
            return;
        }
        self.ledger().give_back(lease);
        let released = match holder {
            Holder::Handle(handle) if dice.usize(..4) == 0 => return drop(handle), // It is released in the background.
            Holder::Handle(handle) => handle.release().await,
            Holder::Id(_) => limiter.release(call()).await,
        };
        if let Err(error) = released {
            self.stats.failed(&error);
            return;
        }
        self.stats.decided();
        if dice.usize(..4) == 0 {
            match limiter.release(call()).await {
                Ok(false) => self.stats.decided(),
                Ok(true) => self.stats.violated(format!("{}: slots were released twice", self.key)),
                Err(error) => drop(self.stats.failed(&error)),
            }
        }
    }
}

impl Holder {
    const fn lease(&self) -> LeaseId {
        match self {
            Self::Handle(lease) => lease.id(),
            Self::Id(lease) => *lease,
        }
    }
}

#[test]
fn slots_count_until_they_may_be_free() {
    let (mut ledger, now) = (Ledger::default(), Instant::now());
    let [first, second, ended] = [LeaseId::random(), LeaseId::random(), LeaseId::random()];
    let later = now + Duration::from_secs(60);
    assert_eq!(ledger.take(first, 2.0, later), 2.0);
    assert_eq!(ledger.take(second, 1.0, later), 3.0);
    assert_eq!(ledger.take(ended, 5.0, now), 3.0);
    ledger.give_back(first);
    assert_eq!(ledger.take(first, 1.0, later), 2.0);
    assert_eq!(ledger.tokens.admitted, 4.0);
}
