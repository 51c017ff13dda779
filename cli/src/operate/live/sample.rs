//! Reads samples, and compares each with the one before.

use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};

use sqlx::{AssertSqlSafe, PgConnection};

use crate::operate::export::{CLOCK, COLUMNS, Row};
use crate::operate::live::taken::{History, PRESENT, Refill};
use crate::operate::live::view::COUNTED;
use crate::operate::live::{BucketView, Counted, Coverage, How, KeyView, LimitView, Snapshot};
use pg_limiter::{Kind, Limit, Limits, Schema};

/// A table of up to this many rows is read whole.
const WHOLE: i64 = 50_000;
/// The size in pages up to which a table may be one.
const WHOLE_PAGES: i64 = 8_192;
/// About this many pages of a larger one are read at a time.
const SAMPLE_PAGES: i64 = 256;
/// The most limits that are listed: the first ones, by name.
const NAMES: usize = 500;

pub(super) type Bucket = (String, String);

/// The number of keys of each limit that has rows, by name; `None` for a limit that is not among the first [`NAMES`].
type KeyCounts = BTreeMap<String, Option<Counted>>;

#[derive(Default)]
pub(super) struct Sample {
    pub(super) at: i64,
    pub(super) rows: Vec<Row>,
    /// The fraction of the table that was read: 1 for a whole table.
    pub(super) share: f64,
    pub(super) pages: u64,
    /// The rows of the watched keys, if the table is large.
    pub(super) watched_rows: Vec<Row>,
    /// If it was time to count them.
    pub(super) counted: Option<KeyCounts>,
}

impl Sample {
    pub(super) fn is_whole(&self) -> bool {
        self.share >= 1.0
    }
}

/// Reads the whole table, or pages of it. The same `seed` reads the same pages, as long as the table does not grow.
pub(super) async fn read(conn: &mut PgConnection, schema: &Schema, seed: u64) -> sqlx::Result<Sample> {
    let table = format!("{}.rate_limits", schema.quoted());
    let sql = format!(
        "SELECT {CLOCK}, pg_catalog.pg_relation_size($1::regclass) / pg_catalog.current_setting('block_size')::bigint, \
           (SELECT c.reltuples::double precision FROM pg_catalog.pg_class AS c WHERE c.oid = $1::regclass)"
    );
    let query = sqlx::query_as(AssertSqlSafe(sql)).bind(&table).persistent(false);
    let (at, pages, tuples): (i64, i64, f64) = query.fetch_one(&mut *conn).await?;
    let sample = |rows, share| Sample { at, rows, share, pages: pages.unsigned_abs(), ..Sample::default() };
    if pages <= WHOLE_PAGES && tuples <= WHOLE as f64 {
        // The one scan, of a small table. LIMIT bounds it if the statistics are old.
        sqlx::raw_sql("SET LOCAL enable_seqscan = on").execute(&mut *conn).await?;
        let sql = format!("SELECT {COLUMNS} FROM {table} LIMIT {}", WHOLE + 1);
        let rows: Vec<Row> = sqlx::query_as(AssertSqlSafe(sql)).persistent(false).fetch_all(&mut *conn).await?;
        sqlx::raw_sql("SET LOCAL enable_seqscan = off").execute(&mut *conn).await?;
        if rows.len() as i64 <= WHOLE {
            return Ok(sample(rows, 1.0));
        }
    }
    let share = (SAMPLE_PAGES as f64 / pages.max(1) as f64).min(1.0);
    let percent = share * 100.0;
    let sql = format!("SELECT {COLUMNS} FROM {table} TABLESAMPLE SYSTEM ({percent}) REPEATABLE ({seed}) LIMIT {WHOLE}");
    let rows = sqlx::query_as(AssertSqlSafe(sql)).persistent(false).fetch_all(conn).await?;
    // Less than 1, because the rows are a sample even if it happens to have all pages.
    Ok(sample(rows, share.min(0.999_999)))
}

pub(super) async fn rows_of(conn: &mut PgConnection, schema: &Schema, buckets: &[Bucket]) -> sqlx::Result<Vec<Row>> {
    let sql = format!(
        "SELECT r.* FROM unnest($1::text[], $2::text[]) AS w (name, key) CROSS JOIN LATERAL \
           (SELECT {COLUMNS} FROM {}.rate_limits AS t WHERE t.name = w.name AND t.key = w.key ORDER BY t.shard) AS r",
        schema.quoted()
    );
    let (names, keys): (Vec<&String>, Vec<&String>) = buckets.iter().map(|(name, key)| (name, key)).unzip();
    sqlx::query_as(AssertSqlSafe(sql)).bind(names).bind(keys).persistent(false).fetch_all(conn).await
}

/// A query for the distinct values of a column of `table`, which is `j`: a look-up in an index for each. `first` narrows the first.
pub(super) fn distinct(column: &str, table: &str, condition: &str, first: &str, most: usize) -> String {
    let next = |and: &str| {
        format!("(SELECT j.{column} FROM {table} AS j WHERE {condition} {and} ORDER BY j.{column} LIMIT 1)")
    };
    format!(
        "WITH RECURSIVE d (value) AS ({} UNION ALL SELECT {} FROM d WHERE d.value IS NOT NULL) \
         SELECT d.value FROM d WHERE d.value IS NOT NULL LIMIT {most}",
        next(first),
        next(&format!("AND j.{column} > d.value"))
    )
}

pub(super) fn distinct_names(schema: &Schema) -> String {
    distinct("name", &format!("{}.rate_limits", schema.quoted()), "true", "", isize::MAX.unsigned_abs())
}

pub(super) async fn names(conn: &mut PgConnection, schema: &Schema) -> sqlx::Result<Vec<String>> {
    sqlx::query_scalar(AssertSqlSafe(distinct_names(schema))).persistent(false).fetch_all(conn).await
}

/// Counts the keys of the first limits, each up to a bound.
pub(super) async fn count_keys(conn: &mut PgConnection, schema: &Schema) -> sqlx::Result<KeyCounts> {
    let names = names(conn, schema).await?;
    let sql = format!(
        "SELECT n.name, CASE WHEN n.nth <= {NAMES} THEN (SELECT pg_catalog.count(*) FROM (SELECT FROM {}.rate_limits AS r \
           WHERE r.name = n.name AND r.shard = 0 LIMIT {COUNTED} + 1) AS bounded) END \
         FROM pg_catalog.unnest($1::text[]) WITH ORDINALITY AS n (name, nth)",
        schema.quoted()
    );
    let counts = sqlx::query_as(AssertSqlSafe(sql)).bind(names).persistent(false).fetch_all(conn).await?;
    Ok(counts.into_iter().map(|(name, keys): (String, Option<i64>)| (name, keys.map(Counted::from))).collect())
}

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

#[derive(Debug, Default)]
pub(super) struct Sampler {
    limits: Limits,
    pub(super) samples: u64,
    at: i64,
    began: Option<i64>,
    /// The times of recent samples; the first is the one from which present rates are measured.
    recent: VecDeque<i64>,
    buckets: BTreeMap<Bucket, Tracked>,
    of_limits: BTreeMap<String, OfLimit>,
    asked: HashMap<Bucket, i64>,
    counted_at: i64,
    counted: KeyCounts,
}

/// A bucket that was read in the last sample, or is watched.
#[derive(Debug, Default)]
struct Tracked {
    rows: Vec<Row>,
    taken: History,
    at: i64,
    /// In a large table: whether it is read in each sample.
    is_watched: bool,
}

#[derive(Debug, Default)]
struct OfLimit {
    refill: Refill,
    taken: History,
    /// An estimate of the tokens that the rest of a large table takes between two samples.
    unwatched: f64,
    keys: f64,
}

impl Sampler {
    pub(super) fn watch(&mut self, name: &str, key: &str) {
        if self.asked.len() < WATCHED {
            self.asked.insert((name.to_owned(), key.to_owned()), self.at);
        }
    }

    pub(super) fn history(&self, name: &str, key: &str) -> Option<Vec<f64>> {
        Some(self.buckets.get(&(name.to_owned(), key.to_owned()))?.taken.bins(self.at))
    }

    pub(super) fn watched(&self) -> Vec<Bucket> {
        let watched = self.buckets.iter().filter(|(_, tracked)| tracked.is_watched).map(|(bucket, _)| bucket);
        watched.chain(self.asked.keys()).collect::<BTreeSet<_>>().into_iter().cloned().collect()
    }

    pub(super) fn must_count(&self, sample: &Sample) -> bool {
        let is_new = |row: &Row| !self.counted.contains_key(&row.name);
        sample.at - self.counted_at > COUNTED_FOR || (!self.is_cut() && sample.rows.iter().any(is_new))
    }

    fn is_cut(&self) -> bool {
        self.counted.len() > NAMES
    }

    /// Compares the sample with the last one. The counts of a limit end if `limits` defines it in another way than before.
    pub(super) fn compare(&mut self, sample: &Sample, limits: Limits) -> Snapshot {
        let former = std::mem::replace(&mut self.limits, limits);
        self.of_limits.retain(|name, _| former.get(name) == self.limits.get(name));
        self.samples += 1;
        self.compare_rows(sample);
        self.at = sample.at;
        self.asked.retain(|_, asked| sample.at - *asked < ASKED_FOR);
        self.recent.push_back(sample.at);
        while self.recent.get(1).is_some_and(|second| *second <= sample.at - PRESENT) {
            self.recent.pop_front();
        }
        self.snapshot(sample)
    }

    /// Compares all rows of a small table; or the watched keys of a large one, and the rows that are also in the sample before.
    fn compare_rows(&mut self, sample: &Sample) {
        let (at, is_whole) = (sample.at, sample.is_whole());
        // For each name: what was taken from watched keys, and in the sample the keys and what was taken from other ones.
        let mut totals: BTreeMap<String, (f64, u64, f64)> = BTreeMap::new();
        for (bucket, rows) in buckets(&sample.watched_rows) {
            let name = bucket.0.clone();
            totals.entry(name).or_default().0 += self.track(bucket, rows, at, false);
        }
        for (bucket, rows) in buckets(&sample.rows) {
            let (_, keys, rest) = totals.entry(bucket.0.clone()).or_default();
            *keys += u64::from(is_whole || rows.iter().any(|row| row.shard == 0));
            if self.buckets.get(&bucket).is_none_or(|tracked| tracked.at != at) {
                *rest += self.track(bucket, rows, at, is_whole);
            }
        }
        let exact = |(nth, (name, (_, keys, _))): (usize, (&String, &(f64, u64, f64)))| {
            (name.clone(), (nth < NAMES).then(|| Counted::exact(*keys)))
        };
        match &sample.counted {
            _ if is_whole => (self.counted, self.counted_at) = (totals.iter().enumerate().map(exact).collect(), 0),
            Some(counted) => (self.counted, self.counted_at) = (counted.clone(), at),
            None => totals.keys().for_each(|name| _ = self.counted.entry(name.clone()).or_default()),
        }
        let is_second = is_whole || self.samples.is_multiple_of(2);
        for (name, of_limit) in &mut self.of_limits {
            let (known, keys, rest) = totals.get(name).copied().unwrap_or_default();
            let unwatched = if is_second { rest / sample.share } else { of_limit.unwatched };
            of_limit.taken.add(at, known + unwatched);
            if !is_whole {
                let estimate = keys as f64 / sample.share;
                of_limit.keys = if of_limit.keys == 0.0 { estimate } else { 0.9 * of_limit.keys + 0.1 * estimate };
                of_limit.unwatched = unwatched;
            }
        }
        let watched = if is_whole { None } else { Some(self.worth_watching(at)) };
        self.buckets.retain(|bucket, tracked| {
            tracked.is_watched = watched.as_ref().map_or(tracked.is_watched, |watched| watched.contains(bucket));
            // A row that was not read has been removed. Those of the first sample of a pair are needed for the second.
            tracked.at == at && (is_whole || tracked.is_watched || !is_second)
        });
    }

    /// The wanted keys, and those that were busy, empty or written recently, up to the bound.
    fn worth_watching(&self, at: i64) -> BTreeSet<Bucket> {
        let mut lately: Vec<(f64, &Bucket)> = Vec::new();
        let mut empty: HashMap<&str, Vec<(f64, &Bucket)>> = HashMap::new();
        for (bucket, tracked) in &self.buckets {
            let Some(view) = BucketView::new(&tracked.rows, at) else { continue };
            if !tracked.taken.is_over(at) {
                lately.push((1.0 + tracked.taken.per_minute(at), bucket));
            } else if at - view.since < RECENT {
                lately.push((0.0, bucket));
            }
            if view.may_be_used(self.limits.get(&bucket.0), at) {
                empty.entry(&bucket.0).or_default().push((view.emptiness(at), bucket));
            }
        }
        let emptiest = empty.into_values().flat_map(|of_limit| largest(of_limit, WATCHED_EMPTY));
        emptiest.chain(largest(lately, WATCHED)).chain(self.asked.keys()).cloned().collect()
    }

    /// Keeps the rows of a bucket for the next sample, and returns the tokens that were taken since the sample before.
    /// `is_whole`: the table has no row that is not in the samples, so a new row is of a bucket that was full.
    fn track(&mut self, bucket: Bucket, rows: Vec<Row>, at: i64, is_whole: bool) -> f64 {
        let new = || OfLimit { refill: Refill::new(self.limits.get(&bucket.0)), ..OfLimit::default() };
        let of_limit = self.of_limits.entry(bucket.0.clone()).or_insert_with(new);
        let tracked = self.buckets.entry(bucket).or_default();
        let before = std::mem::replace(&mut tracked.rows, rows);
        tracked.at = at;
        if self.samples == 1 || (before.is_empty() && !is_whole) {
            return 0.0;
        }
        let same = |row: &Row| before.iter().find(|before| before.shard == row.shard && before.shards == row.shards);
        let taken = tracked.rows.iter().map(|row| of_limit.refill.taken(same(row), row)).sum();
        if taken <= 1e-6 {
            return 0.0;
        }
        tracked.taken.add(at, taken);
        taken
    }

    fn snapshot(&mut self, sample: &Sample) -> Snapshot {
        let at = sample.at;
        let watched = at - *self.began.get_or_insert(at);
        self.of_limits.retain(|name, _| self.counted.get(name).is_some_and(Option::is_some));
        let mut keys: HashMap<&str, Vec<(&Tracked, BucketView)>> = HashMap::new();
        for ((name, _), tracked) in &self.buckets {
            keys.entry(name).or_default().extend(BucketView::new(&tracked.rows, at).map(|view| (tracked, view)));
        }
        let view = |(name, counted): (&String, &Option<Counted>)| {
            Some(self.limit_view(name, (*counted)?, &keys.remove(name.as_str()).unwrap_or_default(), sample))
        };
        let limits = self.counted.iter().filter_map(view).collect();
        let unused = self.limits.iter().filter(|(name, _)| !self.counted.contains_key(*name));
        let unused = unused.map(|(name, limit)| (name.to_owned(), limit.to_string()));
        let coverage = match sample.is_whole() {
            true => Coverage::Whole { rows: sample.rows.len() as u64 },
            false => Coverage::Sampled {
                pages: sample.pages.min(SAMPLE_PAGES.unsigned_abs()),
                of_pages: sample.pages,
                watched: self.buckets.values().filter(|tracked| tracked.is_watched).count() as u64,
            },
        };
        Snapshot { at, watched, coverage, limits, unused: unused.collect(), note: None, is_cut: self.is_cut() }
    }

    /// `keys`: those that are tracked, by key.
    fn limit_view(&self, name: &str, counted: Counted, keys: &[(&Tracked, BucketView)], sample: &Sample) -> LimitView {
        let at = sample.at;
        let since = self.recent.front().copied().unwrap_or(at);
        let limit = self.limits.get(name);
        let capacity = limit.filter(|limit| limit.kind() != Kind::Gate).map(Limit::capacity);
        let view = |(tracked, bucket): &(&Tracked, BucketView)| KeyView {
            bucket: bucket.clone(),
            balance: None,
            capacity,
            taken: tracked.taken.bins(at),
            per_minute: tracked.taken.per_minute(at),
            per_second: tracked.taken.per_second(since, at),
        };
        let busy = keys.iter().filter(|(tracked, _)| !tracked.taken.is_over(at));
        // Its present rate counts most, then its last minute, then its last ten minutes.
        let busyness = |taken: &History| {
            60.0 * taken.per_second(since, at) + taken.per_minute(at) + taken.bins(at).iter().sum::<f64>() / 1000.0
        };
        let busy = busy.map(|key| (busyness(&key.0.taken), key)).collect();
        let not_full = keys.iter().filter(|(_, bucket)| bucket.may_be_used(limit, at));
        let not_full = not_full.map(|key| (key.1.emptiness(at), key)).collect();
        let is_asked = |key: &BucketView| self.asked.contains_key(&(key.name.clone(), key.key.clone()));
        let nothing = OfLimit::default();
        let OfLimit { taken, keys: estimate, .. } = self.of_limits.get(name).unwrap_or(&nothing);
        LimitView {
            name: name.to_owned(),
            limit: limit.map(ToString::to_string),
            capacity,
            keys: counted.or_estimate(*estimate),
            shards: keys.iter().map(|(_, bucket)| bucket.shards.len() as i32).max().unwrap_or_default(),
            taken: taken.bins(at),
            per_minute: taken.per_minute(at),
            per_second: taken.per_second(since, at),
            taken_how: match sample.is_whole() {
                // Without its definition, what was taken from a new key is not known.
                true if limit.is_none() => How::AtLeast,
                true => How::Exact,
                false => How::Estimated,
            },
            busiest: largest(busy, LISTED).map(view).collect(),
            emptiest: largest(not_full, LISTED).map(view).collect(),
            asked: keys.iter().filter(|(_, bucket)| is_asked(bucket)).map(view).collect(),
        }
    }
}

fn largest<T>(mut ranked: Vec<(f64, T)>, most: usize) -> impl Iterator<Item = T> {
    ranked.sort_by(|a, b| b.0.total_cmp(&a.0));
    ranked.into_iter().take(most).map(|(_, of)| of)
}

fn buckets(rows: &[Row]) -> BTreeMap<Bucket, Vec<Row>> {
    let mut buckets: BTreeMap<Bucket, Vec<Row>> = BTreeMap::new();
    for row in rows {
        buckets.entry((row.name.clone(), row.key.clone())).or_default().push(row.clone());
    }
    buckets
}
