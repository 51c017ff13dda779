//! Calls `rate_limit.forget`, which deletes what is stored about a key.

use std::collections::BTreeSet;

use sqlx::{PgConnection, Row};

use crate::call::{Forgotten, Key, LONGEST_KEY};
use crate::error::InvalidCall;
use crate::limit::is_storable;
use crate::sql::TransactionLimiter;
use crate::sql::queue::KnownLimits;

/// The suffix of the buckets that count started jobs. They have the key of the bucket that the job reserved from.
const STARTED: &str = "/started";

/// Checks the key before anything is sent.
pub(crate) fn check_key(key: &Key) -> Result<(), InvalidCall> {
    let Key(key) = key;
    if is_storable(key, 1..=LONGEST_KEY) { Ok(()) } else { Err(InvalidCall::ForgottenKey { bytes: key.len() }) }
}

/// A key to forget, with the limits and the secret that it is stored under.
pub(crate) struct Forgetting<'a> {
    pub(crate) limiter: &'a TransactionLimiter,
    pub(crate) key: &'a Key,
}

impl Forgetting<'_> {
    /// Runs two statements: the first reads the names of limits, because a hash depends on the name.
    pub(crate) async fn delete(&self, connection: &mut PgConnection) -> Result<Forgotten, sqlx::Error> {
        let statements = self.limiter.statements();
        let stored: Vec<String> = statements.names_of_limits.scalar().fetch_all(&mut *connection).await?;
        let (names, keys): (Vec<String>, Vec<String>) = self.buckets(stored).into_iter().unzip();
        let Key(key) = self.key;
        let secret = self.limiter.key_secret();
        let group = secret.map_or_else(|| self.key.clone(), |secret| secret.group(self.key));
        let known = KnownLimits::all(&self.limiter.limits());
        let query = statements
            .forget
            .query()
            .bind(group.as_str())
            .bind(names)
            .bind(keys)
            .bind(secret.map(|secret| secret.idempotency_key(key).as_ref().to_owned()));
        let row = known.bind_with_shards(query).fetch_one(connection).await?;
        let count = |column: usize| row.try_get::<i64, _>(column).map(i64::unsigned_abs);
        Ok(Forgotten { buckets: count(0)?, jobs: count(1)?, running: count(2)?, answers: count(3)? })
    }

    /// The bucket of the key for each limit that is defined or has a row, and the buckets that count its started jobs.
    fn buckets(&self, stored: Vec<String>) -> Vec<(String, String)> {
        let mut names: BTreeSet<String> = self.limiter.limits().iter().map(|(name, _)| name.to_owned()).collect();
        for name in stored {
            if let Some(reserved) = name.strip_suffix(STARTED) {
                names.insert(reserved.to_owned());
            }
            names.insert(name);
        }
        let stored_key = |name: &str| match self.limiter.key_secret() {
            Some(secret) => secret.stored_key(name, self.key.as_str()),
            None => self.key.as_str().to_owned(),
        };
        let buckets: BTreeSet<(String, String)> = names
            .into_iter()
            .flat_map(|name| {
                let key = stored_key(&name);
                [(format!("{name}{STARTED}"), key.clone()), (name, key)]
            })
            .collect();
        buckets.into_iter().collect()
    }
}
