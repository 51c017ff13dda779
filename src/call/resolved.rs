//! A call with its limits looked up and all rules checked. Only resolved calls are sent to the database.

use std::sync::Arc;

use crate::call::{Call, Item, Key, KeySecret};
use crate::error::InvalidCall;
use crate::limit::{LARGEST_NUMBER, Limit, Limits, SMALLEST_NUMBER, check_name, is_storable};

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
}

impl Op {
    /// `limit`, `check`, `peek`, `credit`, `charge` or `reset`.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Limit => "limit",
            Self::Check => "check",
            Self::Peek => "peek",
            Self::Credit => "credit",
            Self::Charge => "charge",
            Self::Reset => "reset",
        }
    }
}

#[derive(Clone, Debug)]
pub(crate) struct ResolvedItem {
    pub(crate) name: Arc<str>,
    pub(crate) key: Arc<str>,
    pub(crate) limit: Limit,
    pub(crate) count: f64,
}

/// A call with each bucket once. `places` maps each item of the call to its position in `items`.
#[derive(Clone, Debug)]
pub(crate) struct Resolved {
    pub(crate) op: Op,
    pub(crate) reserve: bool,
    pub(crate) idempotency_key: Option<Arc<str>>,
    pub(crate) items: Vec<ResolvedItem>,
    pub(crate) places: Vec<usize>,
}

impl Resolved {
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
            if !matches!(op, Op::Limit | Op::Credit | Op::Charge) {
                return Err(InvalidCall::IdempotencyKeyUnsupported);
            }
        }
        let mut resolved = Self {
            op,
            reserve: call.reserve && op != Op::Peek,
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
            let mut item = ResolvedItem { name, key: item.key.0, limit, count: item.count };
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
        if matches!(op, Op::Limit | Op::Check) {
            resolved.items.iter().try_for_each(|item| item.check_possible(call.reserve))?;
        }
        Ok(resolved)
    }

    /// Resolves an operation on one key of a gate.
    pub(crate) fn gate(op: Op, item: Item, limits: &Limits, secret: Option<&KeySecret>) -> Result<Self, InvalidCall> {
        let call = Self::new(op, item.into(), limits, secret)?;
        match call.items.iter().find(|item| !item.limit.is_gate()) {
            Some(item) => Err(InvalidCall::NotAGate { limit: item.name.to_string(), kind: item.limit.kind() }),
            None => Ok(call),
        }
    }

    /// Adds an item. If its bucket is already present, adds up the counts.
    fn add(&mut self, item: ResolvedItem) -> Result<(), InvalidCall> {
        let same = |other: &ResolvedItem| other.name == item.name && other.key == item.key;
        match self.items.iter().position(same) {
            Some(place) if self.items[place].limit != item.limit => {
                Err(InvalidCall::Contradiction { limit: item.name.to_string() })
            }
            Some(place) => {
                self.items[place].count += item.count;
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

impl ResolvedItem {
    fn check_words(&self) -> Result<(), InvalidCall> {
        check_name(&self.name)?;
        if !is_storable(&self.key, 0..=LONGEST_KEY) {
            return Err(InvalidCall::Key { limit: self.name.to_string(), bytes: self.key.len() });
        }
        if self.count != 0.0 && !(SMALLEST_NUMBER..=LARGEST_NUMBER).contains(&self.count) {
            return Err(InvalidCall::Count { limit: self.name.to_string(), count: self.count });
        }
        Ok(())
    }

    pub(crate) fn check_possible(&self, reserve: bool) -> Result<(), InvalidCall> {
        if reserve && !self.limit.kind().can_reserve() {
            return Err(InvalidCall::ReserveUnsupported { limit: self.name.to_string(), kind: self.limit.kind() });
        }
        let max = if reserve { self.limit.largest_reservation() } else { self.limit.largest_count() };
        // The same tolerance as in the decision: sums of fractions are not exact.
        if self.count > max + 1e-9 + 1e-14 * max {
            return Err(InvalidCall::CountExceedsCapacity {
                limit: self.name.to_string(),
                count: self.count,
                max,
                kind: self.limit.kind(),
                reserve,
            });
        }
        Ok(())
    }
}
