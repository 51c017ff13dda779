//! A call with its limits looked up and all rules checked. Only resolved calls are sent to the database.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::oneshot;

use crate::call::{Call, Headroom, InvalidCall, Item, Key, KeySecret, LeaseId};
use crate::limit::{Kind, LONGEST_NAME, Limit, Limits, is_storable};

/// The longest key, in bytes. An index entry holds it together with the name.
pub(crate) const LONGEST_KEY: usize = 1024;
const LONGEST_IDEMPOTENCY_KEY: usize = 255;

/// The operation of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Op {
    /// Takes the tokens, if every item's limit allows it.
    Limit,
    /// Decides as [`Op::Limit`] does, and takes nothing.
    Check,
    /// Returns the balances, and when the buckets are full again.
    Peek,
    /// Gives them back.
    Credit,
    /// Takes them whether or not they are available.
    Charge,
    /// Fills the buckets of its items.
    Reset,
    /// Gives back the slots that the call's [lease](Call::lease) holds.
    Release,
    /// Lets the call's [lease](Call::lease) end later.
    Renew,
}

impl Op {
    /// `limit`, `check`, `peek`, `credit`, `charge`, `reset`, `release` or `renew`.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Limit => "limit",
            Self::Check => "check",
            Self::Peek => "peek",
            Self::Credit => "credit",
            Self::Charge => "charge",
            Self::Reset => "reset",
            Self::Release => "release",
            Self::Renew => "renew",
        }
    }
}

#[derive(Clone, Debug)]
pub(crate) struct ResolvedItem {
    pub(crate) name: Arc<str>,
    pub(crate) key: Arc<str>,
    pub(crate) limit: Limit,
    pub(crate) count: f64,
    /// The tokens that must be left in the bucket: 0 for an operation that has no headroom.
    pub(crate) leave: f64,
}

/// A call with each bucket once. `places` maps each item of the call to its position in `items`.
#[derive(Clone, Debug)]
pub(crate) struct Resolved {
    pub(crate) op: Op,
    pub(crate) reserve: bool,
    pub(crate) lease: Option<LeaseId>,
    /// Dropped with the call. The receiver then knows that the call will not be decided any more.
    pub(crate) undecided: Option<Arc<oneshot::Sender<()>>>,
    pub(crate) idempotency_key: Option<Arc<str>>,
    pub(crate) items: Vec<ResolvedItem>,
    pub(crate) places: Vec<usize>,
}

impl Resolved {
    /// A reservation of nothing: the job takes only slots, when it starts.
    pub(crate) const fn nothing() -> Self {
        Self {
            op: Op::Limit,
            reserve: true,
            lease: None,
            undecided: None,
            idempotency_key: None,
            items: Vec::new(),
            places: Vec::new(),
        }
    }

    /// The names and keys of the items.
    pub(crate) fn buckets(&self) -> Vec<(Arc<str>, Arc<str>)> {
        self.items.iter().map(|item| (item.name.clone(), item.key.clone())).collect()
    }

    /// Resolves a call. With a secret, the keys of the result are hashed.
    pub(crate) fn new(op: Op, call: Call, limits: &Limits, secret: Option<&KeySecret>) -> Result<Self, InvalidCall> {
        if call.items.is_empty() {
            return Err(InvalidCall::Empty);
        }
        if let Some(Key(key)) = &call.idempotency_key {
            if !is_storable(key, 1..=LONGEST_IDEMPOTENCY_KEY) {
                return Err(InvalidCall::IdempotencyKey { bytes: key.len() });
            }
            if !matches!(op, Op::Limit | Op::Credit | Op::Charge) || call.lease.is_some() {
                return Err(InvalidCall::IdempotencyKeyUnsupported);
            }
        }
        let secret = secret.filter(|_| !call.has_stored_keys);
        let mut resolved = Self {
            op,
            reserve: call.reserve && op != Op::Peek,
            lease: call.lease.filter(|_| op != Op::Peek),
            undecided: None,
            idempotency_key: call.idempotency_key.map(|Key(key)| match secret {
                Some(secret) => secret.idempotency_key(&key),
                None => key,
            }),
            items: Vec::with_capacity(call.items.len()),
            places: Vec::with_capacity(call.items.len()),
        };
        for item in call.items {
            let (name, limit) = match item.limit.inline {
                Some(limit) => (item.limit.name, limit),
                None => match limits.find(&item.limit.name) {
                    Some((name, limit)) => (Arc::clone(name), *limit),
                    None => return Err(InvalidCall::UnknownLimit { limit: item.limit.name.to_string() }),
                },
            };
            if matches!(op, Op::Release | Op::Renew) && limit.kind() != Kind::Concurrency {
                continue; // Its tokens stay taken.
            }
            let leave = if op == Op::Peek { 0.0 } else { headroom(item.headroom, &name, &limit)? };
            let supports_headroom = matches!(op, Op::Limit | Op::Check)
                && !call.reserve
                && !matches!(limit.kind(), Kind::Concurrency | Kind::Gate);
            if leave > 0.0 && !supports_headroom {
                return Err(InvalidCall::HeadroomUnsupported { limit: name.to_string() });
            }
            let count = if item.is_difference { limit.exact_difference(item.count, rounding(op)) } else { item.count };
            let mut item = ResolvedItem { name, key: item.key.0, limit, count, leave };
            item.check_words()?;
            if op == Op::Peek {
                item.count = 0.0;
            }
            if item.limit.is_gate() {
                if matches!(op, Op::Credit | Op::Charge) {
                    return Err(InvalidCall::NoTokens { limit: item.name.to_string() });
                }
                item.count = 0.0;
            }
            if let Some(secret) = secret {
                item.key = secret.key(&item.name, &item.key);
            }
            resolved.add(item)?;
        }
        resolved.check_slots()?;
        if matches!(op, Op::Limit | Op::Check) {
            resolved.items.iter().try_for_each(|item| item.check_possible(call.reserve))?;
        }
        Ok(resolved)
    }

    /// Checks what only concurrency limits need: a lease and whole counts.
    fn check_slots(&self) -> Result<(), InvalidCall> {
        let mut limits = self.slots().peekable();
        let Some(ResolvedItem { name, .. }) = limits.peek() else {
            return if self.lease.is_some() { Err(InvalidCall::NoSlots) } else { Ok(()) };
        };
        let limit = name.to_string();
        match self.op {
            Op::Credit | Op::Charge => return Err(InvalidCall::SlotsHaveNoTokens { limit, op: self.op.as_str() }),
            Op::Limit | Op::Release | Op::Renew if self.lease.is_none() => {
                return Err(InvalidCall::NeedsLease { limit });
            }
            _ => {}
        }
        let takes = self.op == Op::Limit;
        let is_wrong = |item: &&ResolvedItem| item.count.fract() != 0.0 || (takes && item.count < 1.0);
        match limits.find(|item| matches!(self.op, Op::Limit | Op::Check) && is_wrong(item)) {
            Some(item) => Err(InvalidCall::Slots { limit: item.name.to_string(), count: item.count }),
            None => Ok(()),
        }
    }

    /// Returns the shortest time for which slots are held.
    pub(crate) fn lease_length(&self) -> Duration {
        self.slots().map(|item| item.limit.period()).min().unwrap_or_default()
    }

    /// Returns the names of the concurrency limits.
    pub(crate) fn names_of_slots(&self) -> Arc<[Arc<str>]> {
        self.slots().map(|item| Arc::clone(&item.name)).collect()
    }

    fn slots(&self) -> impl Iterator<Item = &ResolvedItem> {
        self.items.iter().filter(|item| item.limit.kind() == Kind::Concurrency)
    }

    /// Whether it only takes tokens, without a reservation, a headroom or a lease.
    pub(crate) fn is_plain(&self) -> bool {
        self.op == Op::Limit && !self.reserve && self.lease.is_none() && self.items.iter().all(|item| item.leave == 0.0)
    }

    /// Whether it writes nothing: it returns balances or decisions only, or takes no tokens and no slots.
    pub(crate) fn only_reads(&self) -> bool {
        match self.op {
            Op::Check | Op::Peek => true,
            Op::Limit => self.lease.is_none() && self.items.iter().all(|item| item.count == 0.0),
            Op::Credit | Op::Charge | Op::Reset | Op::Release | Op::Renew => false,
        }
    }

    /// Whether it can be decided together with others by the sums of what they take and give back.
    pub(crate) fn is_by_sums(&self) -> bool {
        let corrects = match self.op {
            Op::Credit => true,
            Op::Charge => self.items.iter().all(|item| item.count > 0.0), // A charge of 0 creates the row of its bucket.
            _ => false,
        };
        self.is_plain() || corrects && self.items.iter().all(|item| item.limit.given_shards().is_none())
    }

    /// Whether it takes slots of one bucket, releases or renews them.
    pub(crate) fn is_on_slots(&self) -> bool {
        matches!(self.op, Op::Limit | Op::Release | Op::Renew)
            && self.lease.is_some()
            && matches!(self.items.as_slice(), [item] if item.limit.kind() == Kind::Concurrency)
    }

    /// Resolves an operation on one key of a gate.
    pub(crate) fn gate(op: Op, item: Item, limits: &Limits, secret: Option<&KeySecret>) -> Result<Self, InvalidCall> {
        let call = Self::new(op, item.into(), limits, secret)?;
        // A gate that is passed inline must not have the name of another kind of limit.
        let kinds = |item: &ResolvedItem| [item.limit.kind(), limits.get(&item.name).map_or(Kind::Gate, Limit::kind)];
        let other = |item: &ResolvedItem| kinds(item).into_iter().find(|kind| *kind != Kind::Gate);
        match call.items.iter().find_map(|item| Some((item, other(item)?))) {
            Some((item, kind)) => Err(InvalidCall::NotAGate { limit: item.name.to_string(), kind }),
            None => Ok(call),
        }
    }

    /// Adds an item. If its bucket is already present, adds up the counts, and keeps the larger headroom.
    fn add(&mut self, item: ResolvedItem) -> Result<(), InvalidCall> {
        let same = |other: &ResolvedItem| other.name == item.name && other.key == item.key;
        match self.items.iter().position(same) {
            Some(place) if self.items[place].limit != item.limit => {
                Err(InvalidCall::Contradiction { limit: item.name.to_string() })
            }
            Some(place) => {
                self.items[place].count += item.count;
                self.items[place].leave = self.items[place].leave.max(item.leave);
                self.places.push(place);
                self.items[place].check_words()
            }
            None => {
                self.places.push(self.items.len());
                self.items.push(item);
                Ok(())
            }
        }
    }
}

/// Returns the headroom in tokens.
fn headroom(headroom: Headroom, name: &str, limit: &Limit) -> Result<f64, InvalidCall> {
    let max = limit.capacity();
    match headroom {
        Headroom::Tokens(leave) if (0.0..=max).contains(&leave) => Ok(leave.abs()), // -0 is 0.
        Headroom::Tokens(leave) => Err(InvalidCall::Headroom { limit: name.to_owned(), leave, max }),
        Headroom::Fraction(fraction) if (0.0..=1.0).contains(&fraction) => Ok(fraction * max),
        Headroom::Fraction(fraction) => Err(InvalidCall::HeadroomFraction { limit: name.to_owned(), fraction }),
    }
}

/// A difference is rounded against the caller: a credit down, and a charge up.
fn rounding(op: Op) -> fn(f64) -> f64 {
    if op == Op::Credit { f64::floor } else { f64::ceil }
}

/// Checks the name of a limit.
pub(crate) fn check_name(name: &str) -> Result<(), InvalidCall> {
    if is_storable(name, 1..=LONGEST_NAME) { Ok(()) } else { Err(InvalidCall::Name { bytes: name.len() }) }
}

impl ResolvedItem {
    fn check_words(&self) -> Result<(), InvalidCall> {
        check_name(&self.name)?;
        if !is_storable(&self.key, 0..=LONGEST_KEY) {
            return Err(InvalidCall::Key { limit: self.name.to_string(), bytes: self.key.len() });
        }
        if !self.limit.can_count(self.count) {
            let capacity = self.limit.capacity();
            return Err(InvalidCall::Count { limit: self.name.to_string(), count: self.count, capacity });
        }
        Ok(())
    }

    pub(crate) fn check_possible(&self, reserve: bool) -> Result<(), InvalidCall> {
        if reserve && !self.limit.kind().can_reserve() {
            return Err(InvalidCall::ReserveUnsupported { limit: self.name.to_string(), kind: self.limit.kind() });
        }
        let most = if reserve { self.limit.largest_reservation() } else { self.limit.largest_count() };
        let max = most - self.leave;
        // The same tolerance as in the decision: sums of fractions are not exact.
        if self.count > max + 1e-9 + 1e-14 * most {
            return Err(InvalidCall::CountExceedsCapacity {
                limit: self.name.to_string(),
                count: self.count,
                leave: self.leave,
                max,
                kind: self.limit.kind(),
                reserve,
            });
        }
        Ok(())
    }
}
