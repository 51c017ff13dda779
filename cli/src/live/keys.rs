//! All buckets of one key, and how they refill.

use std::collections::BTreeSet;
use std::time::Duration;

use serde::Serialize;
use sqlx::AssertSqlSafe;

use crate::error::CliError;
use crate::export;
use crate::live::bucket::BucketView;
use crate::live::live::Live;
use crate::live::sample;
use crate::plot::balance_line;
use crate::replay::moment;
use crate::stored::{ExactArgs, Forms};
use pg_limiter::{CallAt, Item, KeySecret, Kind, Op};

/// Points of a curve.
const POINTS: i64 = 40;
/// A curve ends after this time, even if the bucket is not full then.
const LONGEST: i64 = 366 * 86_400 * 1_000_000;

/// One bucket of a key.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct KeyBucket {
    pub(crate) bucket: BucketView,
    /// The definition, if the limits file has it.
    pub(crate) limit: Option<String>,
    pub(crate) kind: Option<&'static str>,
    /// If the limits file defines the limit, and it is no gate.
    pub(crate) balance: Option<Balance>,
}

#[derive(Clone, Debug, Serialize)]
pub(crate) struct Balance {
    pub(crate) at: i64,
    /// Tokens, or free slots.
    pub(crate) now: f64,
    pub(crate) capacity: f64,
    /// Until a call for one token would be allowed; `None` if it would be allowed now.
    pub(crate) wait: Option<Duration>,
    pub(crate) curve: Curve,
}

/// The balance over time if nothing more is taken: the time in microseconds since the Unix epoch, and the balance.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Curve(pub(crate) Vec<(i64, f64)>);

impl Live {
    /// The buckets of a key, in all limits, by name; and the database's clock. `keys`: the key as the caller gives it and, if
    /// keys are hashed, as each limit stores it.
    pub(crate) async fn key(
        &self,
        key: &str,
        stored: impl Fn(&str) -> Option<String>,
    ) -> Result<(i64, Vec<KeyBucket>), CliError> {
        let mut tx = self.begin().await?;
        let failed = |error| self.failed(error);
        let now = export::now(&mut tx).await.map_err(failed)?;
        let names = sample::names(&mut tx, &self.schema).await.map_err(failed)?;
        let hashed: Vec<(&str, String)> = names
            .iter()
            .filter_map(|name| Some((name.as_str(), stored(name)?)))
            .filter(|(_, hash)| hash != key)
            .collect();
        let asked: Vec<(&str, &str)> = names
            .iter()
            .map(|name| (name.as_str(), key))
            .chain(hashed.iter().map(|(name, key)| (*name, key.as_str())))
            .collect();
        let rows = sample::rows_of(&mut tx, &self.schema, &asked).await.map_err(failed)?;
        let mut found: Vec<KeyBucket> = rows
            .chunk_by(|a, b| (&a.name, &a.key) == (&b.name, &b.key))
            .filter_map(|rows| BucketView::new(rows, now))
            .map(|bucket| {
                let limit = self.limits.get(&bucket.name);
                KeyBucket {
                    limit: limit.map(ToString::to_string),
                    kind: limit.map(|limit| limit.kind().as_str()),
                    balance: None,
                    bucket,
                }
            })
            .collect();
        drop(tx);
        for bucket in &mut found {
            self.watch_key(&bucket.bucket.name, &bucket.bucket.key).await;
            if let Some(limit) = self.limits.get(&bucket.bucket.name).filter(|limit| limit.kind() != Kind::Gate) {
                bucket.balance = self.balance(&bucket.bucket, limit.capacity(), now).await?;
            }
        }
        Ok((now, found))
    }

    /// The balance from `now` until the bucket is full. The database computes it, as for a call at each of these times.
    async fn balance(&self, bucket: &BucketView, capacity: f64, now: i64) -> Result<Option<Balance>, CliError> {
        // A curve is drawn a little past the moment from which the bucket is full.
        let end = now + ((bucket.full_at - now).clamp(1_000_000, LONGEST) / 20).saturating_mul(21);
        let times: Vec<i64> = (0..=POINTS).map(|point| now + (end - now) / POINTS * point).collect();
        let item = || Item::new(&*bucket.name, &*bucket.key);
        let calls = times.iter().map(|at| CallAt::new(moment(*at), Op::Check, item().count(0)));
        let calls: Vec<CallAt> = std::iter::once(CallAt::new(moment(now), Op::Check, item())).chain(calls).collect();
        let mut tx = self.begin().await?;
        let mut decisions = self.rate_limits.decide_at(&mut tx, &calls).await?.into_iter();
        let one = decisions.next().and_then(Result::ok);
        let points: Vec<(i64, f64)> = times
            .into_iter()
            .zip(decisions)
            .filter_map(|(at, decision)| Some((at, decision.ok()?.remaining())))
            .collect();
        let points = match self.limits.get(&bucket.name) {
            Some(limit) => balance_line(points, limit.kind()),
            None => points,
        };
        let Some((at, first)) = points.first().copied() else { return Ok(None) };
        let wait = one.and_then(|decision| decision.retry_after());
        Ok(Some(Balance { at, now: first, capacity, wait, curve: Curve(points) }))
    }

    /// The other forms of a key that have rows, such as the network of an address. `secret`: as for [`Self::key`].
    pub(crate) async fn other_forms(&self, key: &str, secret: Option<&KeySecret>) -> Result<Vec<String>, CliError> {
        let forms = Forms::new(key.to_owned(), ExactArgs::default());
        let mut tx = self.begin().await?;
        let failed = |error| self.failed(error);
        let names = sample::names(&mut tx, &self.schema).await.map_err(failed)?;
        let found = forms.of_limits(&mut tx, &self.schema, secret, &names).await.map_err(failed)?;
        let found: BTreeSet<String> = found.into_iter().map(|(_, form)| form).filter(|form| form != key).collect();
        Ok(found.into_iter().collect())
    }

    /// Some keys that begin with `prefix`, each with a limit that has it. At most `most` of each limit.
    pub(crate) async fn keys_like(&self, prefix: &str, most: u32) -> Result<Vec<(String, String)>, CliError> {
        let mut tx = self.begin().await?;
        let names = sample::names(&mut tx, &self.schema).await.map_err(|error| self.failed(error))?;
        let sql = format!(
            "SELECT n.name, k.key FROM unnest($1::text[]) AS n (name) CROSS JOIN LATERAL \
               (SELECT r.key FROM {}.rate_limits AS r \
                WHERE r.name = n.name AND r.key >= $2 AND r.key < $2 || U&'\\+10FFFF' AND r.shard = 0 \
                ORDER BY r.key LIMIT $3) AS k",
            self.schema.quoted()
        );
        let rows = sqlx::query_as(AssertSqlSafe(sql)).bind(names).bind(prefix).bind(i64::from(most)).persistent(false);
        rows.fetch_all(&mut *tx).await.map_err(|error| self.failed(error))
    }
}
