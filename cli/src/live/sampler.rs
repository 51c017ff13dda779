//! Compares each sample with the one before.

use std::collections::{BTreeMap, HashMap, VecDeque};

use crate::error::CliError;
use crate::export::Row;
use crate::live::bucket::BucketView;
use crate::live::history::{BINS, History, PRESENT};
use crate::live::live::Live;
use crate::live::sample::{self, NAMES, Sample};
use crate::live::taken::Refill;
use crate::live::view::{Counted, Coverage, How, KeyView, LimitView, Snapshot, UnusedLimit};
use crate::replay::moment;
use pg_limiter::{CallAt, Item, Kind, Limit, Limits, Op};

/// Keys of a limit that are listed: the busiest, and the emptiest.
const LISTED: usize = 10;
/// The most keys of a large table that are read in each sample.
const WATCHED: usize = 600;
/// Keys of one limit that are kept in the watch-list because they are empty.
const WATCHED_EMPTY: usize = 20;
/// A key of a large table is a candidate if it was written within this time.
const RECENT: i64 = 60_000_000;
/// Microseconds. The names and the counts of keys of a large table are read less often than the rows.
const COUNTED_FOR: i64 = 30_000_000;
/// A request for a key watches it for this time, in microseconds.
const ASKED_FOR: i64 = 300_000_000;

type Bucket = (String, String);

#[derive(Debug, Default)]
pub(super) struct Sampler {
    limits: Limits,
    samples: u64,
    at: i64,
    /// The time of the first sample.
    began: Option<i64>,
    /// The times of recent samples; the first is the one from which present rates are measured.
    recent: VecDeque<i64>,
    buckets: HashMap<Bucket, Tracked>,
    of_limits: BTreeMap<String, OfLimit>,
    asked: HashMap<Bucket, i64>,
    counted_at: i64,
    counted: Vec<(String, Counted)>,
    is_cut: bool,
}

/// A bucket that was read in the last sample, or is watched.
#[derive(Debug, Default)]
struct Tracked {
    rows: Vec<Row>,
    taken: History,
    /// When it was read last.
    at: i64,
    /// In a large table: whether it is read in each sample.
    is_watched: bool,
}

#[derive(Debug)]
struct OfLimit {
    refill: Refill,
    taken: History,
    /// An estimate of the tokens that the rest of a large table takes between two samples.
    unwatched: f64,
    /// Rows in the whole table, by an estimate.
    keys: f64,
}

impl Sampler {
    pub(super) fn new(limits: Limits) -> Self {
        Self { limits, ..Self::default() }
    }

    pub(super) fn watch(&mut self, name: &str, key: &str) {
        if self.asked.len() < WATCHED {
            self.asked.insert((name.to_owned(), key.to_owned()), self.at);
        }
    }

    /// The tokens taken from a bucket that is read in each sample, in each bin.
    pub(super) fn history(&self, name: &str, key: &str) -> Option<Vec<f64>> {
        Some(self.buckets.get(&(name.to_owned(), key.to_owned()))?.taken.bins(self.at))
    }

    pub(super) async fn sample(&mut self, live: &Live) -> Result<Snapshot, CliError> {
        // Two samples with the same seed read the same pages, so that they can be compared.
        let seed = self.samples / 2;
        let is_watched = |bucket: &&Bucket| self.buckets.get(*bucket).is_some_and(|tracked| tracked.is_watched);
        let asked = self.asked.keys().filter(|bucket| !is_watched(bucket));
        let watched = self.buckets.keys().filter(is_watched).chain(asked);
        let watched: Vec<(&str, &str)> = watched.map(|(name, key)| (name.as_str(), key.as_str())).collect();
        let (sample, watched_rows) = {
            let failed = |error| live.failed(error);
            let mut tx = live.begin().await?;
            let sample = sample::read(&mut tx, &live.schema, seed).await.map_err(failed)?;
            let watched = if sample.is_whole() { &[][..] } else { &watched };
            let watched_rows = sample::rows_of(&mut tx, &live.schema, watched).await.map_err(failed)?;
            let is_old = sample.at - self.counted_at > COUNTED_FOR || self.has_new_name(&sample);
            if !sample.is_whole() && is_old {
                let mut names = sample::names(&mut tx, &live.schema).await.map_err(failed)?;
                self.is_cut = names.len() > NAMES;
                names.truncate(NAMES);
                self.counted = sample::count_keys(&mut tx, &live.schema, &names).await.map_err(failed)?;
                self.counted_at = sample.at;
            }
            (sample, watched_rows)
        };
        self.samples += 1;
        if sample.is_whole() {
            self.compare_all(&sample)
        } else {
            self.compare_sampled(&sample, watched_rows)
        }
        self.at = sample.at;
        self.asked.retain(|_, asked| sample.at - *asked < ASKED_FOR);
        self.recent.push_back(sample.at);
        while self.recent.get(1).is_some_and(|second| *second <= sample.at - PRESENT) {
            self.recent.pop_front();
        }
        let mut snapshot = self.snapshot(&sample);
        snapshot.note = add_balances(&mut snapshot, live).await.err().map(|error| error.to_string());
        Ok(snapshot)
    }

    fn has_new_name(&self, sample: &Sample) -> bool {
        let is_new = |row: &Row| !self.counted.iter().any(|(name, _)| *name == row.name);
        !self.is_cut && sample.rows.iter().any(is_new)
    }

    /// Compares all rows of a small table.
    fn compare_all(&mut self, sample: &Sample) {
        let at = sample.at;
        let mut counts: BTreeMap<&str, u64> = BTreeMap::new();
        for (name, key, rows) in buckets(&sample.rows) {
            *counts.entry(name).or_default() += 1;
            let bucket = (name.to_owned(), key.to_owned());
            let taken = self.taken(&bucket, &rows);
            self.of_limit(name).taken.add(at, taken);
            self.track(bucket, rows, at, taken);
        }
        self.is_cut = counts.len() > NAMES;
        self.counted =
            counts.into_iter().take(NAMES).map(|(name, keys)| (name.to_owned(), Counted::exact(keys))).collect();
        self.counted_at = 0;
        self.buckets.retain(|_, tracked| tracked.at == at);
    }

    /// Compares the watched keys of a large table, and the rows that are also in the sample before.
    fn compare_sampled(&mut self, sample: &Sample, watched_rows: Vec<Row>) {
        let at = sample.at;
        let mut in_sample: BTreeMap<&str, (f64, f64)> = BTreeMap::new();
        let mut known: BTreeMap<String, f64> = BTreeMap::new();
        for (name, key, rows) in buckets(&watched_rows) {
            let bucket = (name.to_owned(), key.to_owned());
            let taken = if self.buckets.contains_key(&bucket) { self.taken(&bucket, &rows) } else { 0.0 };
            *known.entry(name.to_owned()).or_default() += taken;
            self.track(bucket, rows, at, taken);
        }
        for (name, key, rows) in buckets(&sample.rows) {
            let (keys, taken_rest) = in_sample.entry(name).or_default();
            *keys += f64::from(u8::from(rows.iter().any(|row| row.shard == 0)));
            let bucket = (name.to_owned(), key.to_owned());
            let before = self.buckets.get(&bucket);
            if before.is_some_and(|tracked| tracked.at == at) {
                continue;
            }
            // A new bucket of the sample was not new in the table.
            let taken = if before.is_some() { self.taken(&bucket, &rows) } else { 0.0 };
            *taken_rest += taken;
            self.track(bucket, rows, at, taken);
        }
        let is_second = self.samples.is_multiple_of(2);
        let names: Vec<String> =
            self.of_limits.keys().cloned().chain(in_sample.keys().map(|name| (*name).to_owned())).collect();
        for name in names {
            let (keys, rest) = in_sample.get(name.as_str()).copied().unwrap_or_default();
            let known = known.get(&name).copied().unwrap_or_default();
            let of_limit = self.of_limit(&name);
            let estimate = keys / sample.share;
            of_limit.keys = if of_limit.keys == 0.0 { estimate } else { 0.9 * of_limit.keys + 0.1 * estimate };
            if is_second {
                of_limit.unwatched = rest / sample.share;
            }
            let taken = known + of_limit.unwatched;
            of_limit.taken.add(at, taken);
        }
        // Keep the keys that were busy, empty or written recently, up to the bound.
        let mut kept: Vec<(f64, Bucket)> = Vec::new();
        let mut empty: HashMap<&str, Vec<(f64, &Bucket)>> = HashMap::new();
        for (bucket, tracked) in &self.buckets {
            let Some(view) = BucketView::new(&tracked.rows, at) else { continue };
            if !tracked.taken.is_over(at) {
                kept.push((1.0 + tracked.taken.per_minute(at), bucket.clone()));
            } else if at - view.since < RECENT {
                kept.push((0.0, bucket.clone()));
            }
            empty.entry(bucket.0.as_str()).or_default().push((view.emptiness(at), bucket));
        }
        let mut keep: std::collections::HashSet<Bucket> = self.asked.keys().cloned().collect();
        for of_limit in empty.values_mut() {
            of_limit.sort_by(|a, b| b.0.total_cmp(&a.0));
            keep.extend(of_limit.iter().take(WATCHED_EMPTY).map(|(_, bucket)| (*bucket).clone()));
        }
        kept.sort_by(|a, b| b.0.total_cmp(&a.0));
        keep.extend(kept.into_iter().take(WATCHED).map(|(_, bucket)| bucket));
        self.buckets.retain(|bucket, tracked| {
            tracked.is_watched = keep.contains(bucket);
            // A row that was not read has been removed. Those of the first sample of a pair are needed for the second.
            tracked.at == at && (tracked.is_watched || !is_second)
        });
    }

    /// Keeps the rows of a bucket for the next sample.
    fn track(&mut self, bucket: Bucket, rows: Vec<Row>, at: i64, taken: f64) {
        let tracked = self.buckets.entry(bucket).or_default();
        (tracked.rows, tracked.at) = (rows, at);
        if taken > 0.0 {
            tracked.taken.add(at, taken);
        }
    }

    /// The tokens that were taken from a bucket since the sample before.
    fn taken(&mut self, bucket: &Bucket, rows: &[Row]) -> f64 {
        if self.samples <= 1 {
            return 0.0;
        }
        let before = self.buckets.get(bucket).map_or(&[][..], |tracked| &tracked.rows);
        let limit = self.limits.get(&bucket.0);
        let of_limit = self.of_limits.entry(bucket.0.clone()).or_insert_with(|| OfLimit::new(limit));
        let of_row = |row: &Row| {
            let before = before.iter().find(|before| before.shard == row.shard && before.shards == row.shards);
            of_limit.refill.taken(before, row)
        };
        let taken: f64 = rows.iter().map(of_row).sum();
        if taken > 1e-6 { taken } else { 0.0 }
    }

    fn of_limit(&mut self, name: &str) -> &mut OfLimit {
        let limit = self.limits.get(name);
        self.of_limits.entry(name.to_owned()).or_insert_with(|| OfLimit::new(limit))
    }

    fn snapshot(&mut self, sample: &Sample) -> Snapshot {
        let at = sample.at;
        let watched = at - *self.began.get_or_insert(at);
        let since = self.recent.front().copied().unwrap_or(at);
        self.of_limits.retain(|name, _| self.counted.iter().any(|(counted, _)| counted == name));
        let mut of_names: HashMap<&str, Vec<(&Tracked, BucketView)>> = HashMap::new();
        for ((name, _), tracked) in &self.buckets {
            if let Some(view) = BucketView::new(&tracked.rows, at) {
                of_names.entry(name).or_default().push((tracked, view));
            }
        }
        let limits = self.counted.iter().map(|(name, counted)| {
            let limit = self.limits.get(name);
            let of_limit = self.of_limits.get(name);
            let mut keys = of_names.remove(name.as_str()).unwrap_or_default();
            let view = |(tracked, bucket): &(&Tracked, BucketView)| KeyView {
                bucket: bucket.clone(),
                balance: None,
                capacity: limit.filter(|limit| limit.kind() != Kind::Gate).map(pg_limiter::Limit::capacity),
                taken: tracked.taken.bins(at),
                per_minute: tracked.taken.per_minute(at),
                per_second: tracked.taken.per_second(since, at),
            };
            let shards = keys.iter().map(|(_, bucket)| bucket.shards.len()).max().unwrap_or_default();
            keys.sort_by(|a, b| b.1.emptiness(at).total_cmp(&a.1.emptiness(at)).then_with(|| a.1.key.cmp(&b.1.key)));
            let is_asked = |key: &BucketView| self.asked.contains_key(&(key.name.clone(), key.key.clone()));
            let asked =
                keys.iter().filter(|(_, bucket)| !self.asked.is_empty() && is_asked(bucket)).map(view).collect();
            let not_full = keys.iter().filter(|(_, bucket)| !bucket.is_full(at));
            let emptiest = not_full.take(LISTED).map(view).collect();
            let is_busy = |tracked: &Tracked| !tracked.taken.is_over(at);
            let mut busy: Vec<(f64, &(&Tracked, BucketView))> =
                keys.iter().filter(|key| is_busy(key.0)).map(|key| (busyness(&key.0.taken, since, at), key)).collect();
            busy.sort_by(|a, b| b.0.total_cmp(&a.0).then_with(|| a.1.1.key.cmp(&b.1.1.key)));
            LimitView {
                name: name.clone(),
                limit: limit.map(ToString::to_string),
                capacity: limit.filter(|limit| limit.kind() != Kind::Gate).map(pg_limiter::Limit::capacity),
                keys: of_limit.map_or(*counted, |of_limit| sample::estimated(*counted, of_limit.keys)),
                shards: i32::try_from(shards).unwrap_or(i32::MAX),
                taken: of_limit.map_or_else(|| vec![0.0; BINS], |of_limit| of_limit.taken.bins(at)),
                per_minute: of_limit.map_or(0.0, |of_limit| of_limit.taken.per_minute(at)),
                per_second: of_limit.map_or(0.0, |of_limit| of_limit.taken.per_second(since, at)),
                taken_how: match limit {
                    _ if !sample.is_whole() => How::Estimated,
                    Some(_) => How::Exact,
                    None => How::AtLeast,
                },
                busiest: busy.into_iter().take(LISTED).map(|(_, key)| view(key)).collect(),
                emptiest,
                asked,
            }
        });
        let limits: Vec<LimitView> = limits.collect();
        let is_used = |name: &str| self.counted.iter().any(|(used, _)| used == name);
        let unused = self.limits.iter().filter(|(name, _)| !is_used(name));
        Snapshot {
            at,
            watched,
            coverage: if sample.is_whole() {
                Coverage::Whole { rows: sample.rows.len() as u64 }
            } else {
                let watched = self.buckets.values().filter(|tracked| tracked.is_watched).count() as u64;
                Coverage::Sampled { pages: sample.sampled_pages, of_pages: sample.pages, watched }
            },
            unused: unused
                .map(|(name, limit)| UnusedLimit { name: name.to_owned(), limit: limit.to_string() })
                .collect(),
            limits,
            note: None,
            is_cut: self.is_cut,
        }
    }
}

impl OfLimit {
    fn new(limit: Option<&Limit>) -> Self {
        Self { refill: Refill::new(limit), taken: History::default(), unwatched: 0.0, keys: 0.0 }
    }
}

/// How busy a key is: its present rate counts most, then its last minute, then its last ten minutes.
fn busyness(taken: &History, since: i64, at: i64) -> f64 {
    60.0 * taken.per_second(since, at) + taken.per_minute(at) + taken.bins(at).iter().sum::<f64>() / 1000.0
}

/// The rows of each bucket.
fn buckets<'r>(rows: &'r [Row]) -> Vec<(&'r str, &'r str, Vec<Row>)> {
    let mut sorted: Vec<&Row> = rows.iter().collect();
    sorted.sort_unstable_by(|a, b| (&a.name, &a.key, a.shard).cmp(&(&b.name, &b.key, b.shard)));
    let chunks = sorted.chunk_by(|a, b| a.name == b.name && a.key == b.key);
    let bucket = |chunk: &[&'r Row]| {
        let copies = chunk.iter().map(|row| (*row).clone()).collect();
        (chunk[0].name.as_str(), chunk[0].key.as_str(), copies)
    };
    chunks.map(bucket).collect()
}

/// Adds the balances of the listed keys, and sorts the emptiest by them.
async fn add_balances(snapshot: &mut Snapshot, live: &Live) -> Result<(), CliError> {
    let time = moment(snapshot.at);
    let is_defined = |name: &str| live.limits.get(name).is_some_and(|limit| limit.kind() != Kind::Gate);
    let mut keys: Vec<&mut KeyView> = snapshot
        .limits
        .iter_mut()
        .filter(|limit| is_defined(&limit.name))
        .flat_map(|limit| limit.busiest.iter_mut().chain(&mut limit.emptiest).chain(&mut limit.asked))
        .collect();
    if keys.is_empty() {
        return Ok(());
    }
    let peek =
        |key: &&mut KeyView| CallAt::new(time, Op::Check, Item::new(&*key.bucket.name, &*key.bucket.key).count(0));
    let calls: Vec<CallAt> = keys.iter().map(peek).collect();
    let mut tx = live.begin().await?;
    let mut balances = Vec::with_capacity(calls.len());
    for chunk in calls.chunks(250) {
        let decisions = live.rate_limits.decide_at(&mut tx, chunk).await?;
        balances.extend(decisions.into_iter().map(|decision| decision.ok().map(|decision| decision.remaining())));
    }
    for (key, balance) in keys.iter_mut().zip(balances) {
        key.balance = balance;
    }
    for limit in &mut snapshot.limits {
        if is_defined(&limit.name) {
            limit.emptiest.sort_by(|a, b| {
                let balance = |key: &KeyView| key.balance.unwrap_or(f64::INFINITY);
                balance(a).total_cmp(&balance(b)).then_with(|| a.bucket.key.cmp(&b.bucket.key))
            });
        }
    }
    Ok(())
}
