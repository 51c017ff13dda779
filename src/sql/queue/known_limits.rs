use sqlx::Postgres;
use sqlx::postgres::PgArguments;
use sqlx::query::Query;

use crate::limit::{Limit, Limits};

/// Limits by name as arrays: what a job says of its limits is their names.
#[derive(Clone, Debug, Default)]
pub(crate) struct KnownLimits {
    names: Vec<String>,
    kinds: Vec<&'static str>,
    rates: Vec<f64>,
    periods: Vec<i64>,
    capacities: Vec<Option<f64>>,
    starts: Vec<Option<i64>>,
    shards: Vec<Option<i32>>,
}

impl KnownLimits {
    /// Those that can reserve: no job has others.
    pub(crate) fn all(limits: &Limits) -> Self {
        let mut known = Self::default();
        limits.iter().for_each(|(name, limit)| known.add(name, limit));
        known
    }

    /// Those of them with these names.
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
        if !limit.kind().can_reserve() {
            return;
        }
        self.names.push(name.into());
        self.kinds.push(limit.kind().as_str());
        self.rates.push(limit.rate());
        self.periods.push(limit.period_micros());
        self.capacities.push(limit.given_capacity());
        self.starts.push(limit.start_micros());
        self.shards.push(limit.given_shards().and_then(|shards| i32::try_from(shards).ok()));
    }

    /// As the six arguments of a function that looks at what was started.
    pub(super) fn bind<'q>(&'q self, query: Query<'q, Postgres, PgArguments>) -> Query<'q, Postgres, PgArguments> {
        query
            .bind(&self.names)
            .bind(&self.kinds)
            .bind(&self.rates)
            .bind(&self.periods)
            .bind(&self.capacities)
            .bind(&self.starts)
    }

    /// And as the seven of one that looks at what was reserved.
    pub(super) fn bind_with_shards<'q>(
        &'q self,
        query: Query<'q, Postgres, PgArguments>,
    ) -> Query<'q, Postgres, PgArguments> {
        self.bind(query).bind(&self.shards)
    }
}
