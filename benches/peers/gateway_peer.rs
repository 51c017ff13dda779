//! How each peer serves a request of the gateway: it takes from four limits, and gives back the tokens that were not used.

use std::collections::HashMap;
use std::sync::Arc;

use pg_limiter::{Item, Limiter};
use sqlx::PgPool;

use crate::Failure;
use crate::keys::{self, Keys, partner};
use crate::limiters::{FOUR, PLENTY};
use crate::redis_peer::RedisBuckets;

/// The estimate of a request's tokens.
const ESTIMATE: u32 = 1_000;

/// The keys of each user's requests: of the user's requests, and of the tokens of the user, the team and the only model. Each key
/// is used with one limit, because most peers have no limits of several names.
#[derive(Clone, Debug)]
pub(crate) struct Requests(Arc<HashMap<Arc<str>, [Arc<str>; 4]>>);

impl Requests {
    pub(crate) fn of(work: &str, users: usize, teams: usize) -> (Self, Keys) {
        let numbered = |what: &str, count| keys::numbered_of(&format!("{work}:{what}"), count);
        let (users, tokens, teams) = (numbered("requests", users), numbered("tokens", users), numbered("team", teams));
        let model = keys::key(format_args!("{work}:model"));
        let of_user = |(user, tokens): (&Arc<str>, &Arc<str>)| {
            (user.clone(), [user, tokens, partner(&teams, user), &model].map(Arc::clone))
        };
        (Self(Arc::new(users.iter().zip(&*tokens).map(of_user).collect())), users)
    }

    fn keys(&self, user: &str) -> Result<&[Arc<str>; 4], Failure> {
        self.0.get(user).ok_or_else(|| format!("{user} is not a user of this load").into())
    }
}

/// How a peer takes the tokens of a request, and gives back what it did not use.
#[derive(Debug)]
pub(crate) enum Gateway {
    /// `limiter.limit` and `limiter.credit`.
    Own(Limiter),
    /// A call of a function each, in autocommit.
    TensorZero(PgPool),
    /// A script each.
    Redis(RedisBuckets),
}

impl Gateway {
    /// Takes a request and the estimate of its tokens.
    pub(crate) async fn take(&self, requests: &Requests, user: &str) -> Result<bool, Failure> {
        let keys = requests.keys(user)?;
        let counts = [1, ESTIMATE, ESTIMATE, ESTIMATE];
        match self {
            Self::Own(limiter) => Ok(limiter.limit(items(&FOUR, keys, &counts)).await?.is_allowed()),
            Self::TensorZero(pool) => Ok(tensorzero(pool, TENSORZERO_TAKE, keys, &counts).await?),
            Self::Redis(buckets) => buckets.take(keys, &counts).await,
        }
    }

    /// Gives back the part of the estimate that was not used.
    pub(crate) async fn settle(&self, requests: &Requests, user: &str) -> Result<(), Failure> {
        let keys = &requests.keys(user)?[1..];
        let unused = [fastrand::u32(1..=ESTIMATE); 3];
        match self {
            Self::Own(limiter) => limiter.credit(items(&FOUR[1..], keys, &unused)).await.map(drop)?,
            Self::TensorZero(pool) => tensorzero(pool, TENSORZERO_GIVE_BACK, keys, &unused).await.map(drop)?,
            Self::Redis(buckets) => buckets.give_back(keys, &unused).await?,
        }
        Ok(())
    }

    /// The number of retries so far.
    pub(crate) fn retries(&self) -> u64 {
        if let Self::Own(limiter) = self { limiter.retries() } else { 0 }
    }
}

fn items(limits: &[&'static str], keys: &[Arc<str>], counts: &[u32]) -> Vec<Item> {
    let items = limits.iter().zip(keys).zip(counts);
    items.map(|((limit, key), count)| Item::new(*limit, key.clone()).count(*count)).collect()
}

const TENSORZERO_TAKE: &str = "SELECT bool_and(ok) FROM tensorzero_take($1, $2, $3, $4, interval '1 hour')";
const TENSORZERO_GIVE_BACK: &str = "SELECT bool_and(ok) FROM tensorzero_give_back($1, $2, $3, $4, interval '1 hour')";

async fn tensorzero(pool: &PgPool, sql: &'static str, keys: &[Arc<str>], counts: &[u32]) -> Result<bool, sqlx::Error> {
    let names: Vec<&str> = keys.iter().map(|key| &**key).collect();
    let counts: Vec<i64> = counts.iter().map(|count| i64::from(*count)).collect();
    let (capacities, refills) = (vec![PLENTY as i64; names.len()], vec![1_i64; names.len()]);
    sqlx::query_scalar(sql).bind(names).bind(counts).bind(capacities).bind(refills).fetch_one(pool).await
}
