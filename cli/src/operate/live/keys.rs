//! All buckets of one key, and how they refill.

use std::collections::BTreeSet;

use sqlx::{AssertSqlSafe, PgConnection};

use crate::Result;
use crate::balance_line::balance_line;
use crate::operate::export;
use crate::operate::live::sample::{self, Bucket};
use crate::operate::live::{BucketView, Live};
use crate::operate::stored::{ExactArgs, Forms};
use crate::text::moment;
use pg_limiter::{CallAt, Item, KeySecret, Kind, Limit, Op};

const POINTS: i64 = 40;
/// The most buckets of a key that are read.
pub(crate) const BUCKETS: usize = 1000;
/// A curve ends after this time, even if the bucket is not full then.
const LONGEST: i64 = 366 * 86_400 * 1_000_000;

pub(crate) struct KeyBucket {
    pub(crate) bucket: BucketView,
    pub(crate) limit: Option<Limit>,
    /// If the definition is known, and the limit is no gate.
    pub(crate) balance: Option<Balance>,
    /// The tokens taken in each bin of the last ten minutes, if it is among the keys that are read in each sample.
    pub(crate) taken: Option<Vec<f64>>,
}

pub(crate) struct Balance {
    /// Tokens, or free slots.
    pub(crate) now: f64,
    pub(crate) capacity: f64,
    /// Until a call for one token would be allowed; `None` if it would be allowed now.
    pub(crate) wait: Option<std::time::Duration>,
    /// The balance over time if nothing more is taken: the time in microseconds since the Unix epoch, and the balance.
    pub(crate) curve: Vec<(i64, f64)>,
}

impl Live {
    /// The buckets of a key, by name, up to [`BUCKETS`]; and the database's clock. `secret`: with which keys are hashed, if they are.
    pub(crate) async fn key(&self, key: &str, secret: Option<&KeySecret>) -> Result<(i64, Vec<KeyBucket>)> {
        let read = async |tx: &mut PgConnection| {
            let names = sample::names(tx, &self.schema).await?;
            let given = names.iter().map(|name| (name.clone(), key.to_owned()));
            let hashed = names.iter().filter_map(|name| Some((name.clone(), secret?.stored_key(name, key))));
            let asked: Vec<Bucket> = given.chain(hashed.filter(|(_, hash)| hash != key)).collect();
            Ok((export::now(tx).await?, sample::rows_of(tx, &self.schema, &asked).await?))
        };
        let (now, rows) = self.read(read).await?;
        let (mut found, limits) = (Vec::new(), self.limits());
        let buckets = rows.chunk_by(|a, b| (&a.name, &a.key) == (&b.name, &b.key));
        for mut bucket in buckets.filter_map(|rows| BucketView::new(rows, now)).take(BUCKETS) {
            self.watch_key(&bucket.name, &bucket.key).await;
            let limit = limits.get(&bucket.name).copied();
            let balance = self.balance(&mut bucket, limit, now).await?;
            let taken = self.sampler.lock().await.history(&bucket.name, &bucket.key);
            found.push(KeyBucket { bucket, limit, balance, taken });
        }
        Ok((now, found))
    }

    pub(crate) async fn has_rows(&self, name: &str, key: &str) -> Result<bool> {
        let bucket = [(name.to_owned(), key.to_owned())];
        Ok(!self.read(async |tx: &mut PgConnection| sample::rows_of(tx, &self.schema, &bucket).await).await?.is_empty())
    }

    /// The balance from `now` until the bucket is full. The database computes it, as for a call at each of these times.
    async fn balance(&self, bucket: &mut BucketView, limit: Option<Limit>, now: i64) -> Result<Option<Balance>> {
        let Some(limit) = limit.filter(|limit| limit.kind() != Kind::Gate) else { return Ok(None) };
        let mut tx = self.begin().await?;
        let asked = std::iter::once((&*bucket.name, &*bucket.key));
        let state = export::balances(&mut tx, &self.rate_limits, moment(now), asked).await?.pop().flatten();
        bucket.refills(state.as_ref(), now);
        // A curve is drawn a little past the moment from which the bucket is full.
        let end = now + ((bucket.full_at - now).clamp(1_000_000, LONGEST) / 20).saturating_mul(21);
        let times: Vec<i64> = (0..=POINTS).map(|point| now + (end - now) / POINTS * point).collect();
        let item = || Item::new(&*bucket.name, &*bucket.key);
        let calls = times.iter().map(|at| CallAt::new(moment(*at), Op::Check, item().count(0)));
        let calls: Vec<CallAt> = std::iter::once(CallAt::new(moment(now), Op::Check, item())).chain(calls).collect();
        let mut decisions = self.rate_limits.decide_at(&mut tx, &calls).await?.into_iter();
        let wait = decisions.next().and_then(Result::ok).and_then(|decision| decision.retry_after());
        let points = times.into_iter().zip(decisions);
        let points = points.filter_map(|(at, decision)| Some((at, decision.ok()?.remaining()))).collect();
        let curve = balance_line(points, limit.kind());
        let first = curve.first().map(|point| point.1);
        Ok(first.map(|now| Balance { now, capacity: limit.capacity(), wait, curve }))
    }

    /// The other forms of a key that have rows, such as the network of an address. `secret`: as for [`Self::key`].
    pub(crate) async fn other_forms(&self, key: &str, secret: Option<&KeySecret>) -> Result<BTreeSet<String>> {
        let forms = Forms::new(key.to_owned(), ExactArgs::default(), secret.cloned());
        let read = async |tx: &mut PgConnection| {
            let names = sample::names(tx, &self.schema).await?;
            forms.of_limits(tx, &self.schema, &names).await
        };
        Ok(self.read(read).await?.into_iter().map(|(_, form)| form).filter(|form| form != key).collect())
    }

    /// Some keys that begin with `prefix`, each with a limit that has it: of each limit, at most the first `most` from the prefix on.
    pub(crate) async fn keys_like(&self, prefix: &str, most: u32) -> Result<Vec<(String, String)>> {
        let sql = format!(
            "SELECT pg_catalog.json_build_array(n.name, k.key)::text FROM ({}) AS n (name) CROSS JOIN LATERAL \
               (SELECT r.key FROM {}.rate_limits AS r WHERE r.name = n.name AND r.key >= $1 AND r.shard = 0 \
                ORDER BY r.key LIMIT $2) AS k WHERE pg_catalog.starts_with(k.key, $1) LIMIT {BUCKETS}",
            sample::distinct_names(&self.schema),
            self.schema.quoted()
        );
        self.rows(sqlx::query_as(AssertSqlSafe(sql)).bind(prefix).bind(i64::from(most))).await
    }
}
