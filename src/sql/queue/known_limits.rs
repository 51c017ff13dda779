use std::borrow::Cow;

use sqlx::Postgres;
use sqlx::postgres::PgArguments;
use sqlx::query::Query;

use crate::limit::{Kind, Limit, Limits};

/// Limits by name, as arrays. A job stores only the names of its limits.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct KnownLimits {
    names: Vec<String>,
    kinds: Vec<Cow<'static, str>>,
    rates: Vec<f64>,
    periods: Vec<i64>,
    capacities: Vec<Option<f64>>,
    starts: Vec<Option<i64>>,
    shards: Vec<Option<i32>>,
    slots: Slots,
}

/// Concurrency limits. Jobs take their slots when they start.
#[derive(Clone, Debug, Default, PartialEq)]
struct Slots {
    names: Vec<String>,
    capacities: Vec<f64>,
    leases: Vec<i64>,
}

impl KnownLimits {
    /// Returns all limits that jobs can have.
    pub(crate) fn all(limits: &Limits) -> Self {
        let mut known = Self::default();
        limits.iter().for_each(|(name, limit)| known.add(name, limit));
        known
    }

    /// Returns those of the limits that jobs can have and that have these names.
    pub(crate) fn of<'a>(limits: &Limits, names: impl IntoIterator<Item = &'a str>) -> Self {
        let mut known = Self::default();
        for name in names {
            if let Some(limit) = limits.get(name) {
                known.add(name, limit);
            }
        }
        known
    }

    fn add(&mut self, name: &str, limit: &Limit) {
        if limit.kind() == Kind::Concurrency {
            self.slots.names.push(name.into());
            self.slots.capacities.push(limit.capacity());
            self.slots.leases.push(limit.period_micros());
        }
        if !limit.kind().can_reserve() || limit.is_gate() {
            return;
        }
        self.names.push(name.into());
        self.kinds.push(limit.kind_in_sql());
        self.rates.push(limit.rate());
        self.periods.push(limit.period_micros());
        self.capacities.push(limit.given_capacity());
        self.starts.push(limit.start_micros());
        self.shards.push(limit.given_shards().and_then(|shards| i32::try_from(shards).ok()));
    }

    /// Binds the six arguments of a function that uses the `/started` buckets of the limits.
    pub(super) fn bind<'q>(&'q self, query: Query<'q, Postgres, PgArguments>) -> Query<'q, Postgres, PgArguments> {
        query
            .bind(&self.names)
            .bind(&self.kinds)
            .bind(&self.rates)
            .bind(&self.periods)
            .bind(&self.capacities)
            .bind(&self.starts)
    }

    /// Binds the six arguments of a claim, which also uses concurrency limits.
    pub(super) fn bind_with_slots<'q>(
        &'q self,
        query: Query<'q, Postgres, PgArguments>,
    ) -> Query<'q, Postgres, PgArguments> {
        let Slots { names, capacities, leases } = &self.slots;
        if names.is_empty() {
            return self.bind(query);
        }
        let kinds = self.kinds.iter().map(|kind| &**kind).chain(names.iter().map(|_| Kind::Concurrency.as_str()));
        query
            .bind([self.names.as_slice(), names].concat())
            .bind(kinds.collect::<Vec<&str>>())
            .bind([self.rates.as_slice(), capacities].concat())
            .bind([self.periods.as_slice(), leases].concat())
            .bind(self.capacities.iter().copied().chain(names.iter().map(|_| None)).collect::<Vec<_>>())
            .bind(self.starts.iter().copied().chain(names.iter().map(|_| None)).collect::<Vec<_>>())
    }

    /// Binds the number of shards of each limit of [`bind_with_slots`](Self::bind_with_slots).
    pub(super) fn bind_shards_with_slots<'q>(
        &self,
        query: Query<'q, Postgres, PgArguments>,
    ) -> Query<'q, Postgres, PgArguments> {
        let slots = self.slots.names.iter().map(|_| None);
        query.bind(self.shards.iter().copied().chain(slots).collect::<Vec<Option<i32>>>())
    }

    /// Binds the seven arguments of a function that uses the buckets of reservations.
    pub(crate) fn bind_with_shards<'q>(
        &'q self,
        query: Query<'q, Postgres, PgArguments>,
    ) -> Query<'q, Postgres, PgArguments> {
        self.bind(query).bind(&self.shards)
    }
}
