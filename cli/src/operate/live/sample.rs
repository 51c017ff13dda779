//! Reads the rows of a small table, or a sample of a large one.

use std::collections::BTreeMap;

use sqlx::{AssertSqlSafe, PgConnection};

use crate::operate::export::{CLOCK, COLUMNS, Row};
use crate::operate::live::view::{COUNTED, Counted};
use pg_limiter::Schema;

/// A table of up to this many rows is read whole.
const WHOLE: i64 = 50_000;
/// The size in pages up to which a table may be one.
const WHOLE_PAGES: i64 = 8_192;
/// About this many pages of a larger one are read at a time.
pub(super) const SAMPLE_PAGES: i64 = 256;
/// The most limits that are listed: the first ones, by name.
pub(super) const NAMES: usize = 500;

pub(super) type Bucket = (String, String);

/// The number of keys of each limit that has rows, by name; `None` for a limit that is not among the first [`NAMES`].
pub(super) type KeyCounts = BTreeMap<String, Option<Counted>>;

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
pub(super) async fn count_keys(conn: &mut PgConnection, schema: &Schema, names: &[String]) -> sqlx::Result<KeyCounts> {
    let sql = format!(
        "SELECT n.name, CASE WHEN n.nth <= {NAMES} THEN (SELECT pg_catalog.count(*) FROM (SELECT FROM {}.rate_limits AS r \
           WHERE r.name = n.name AND r.shard = 0 LIMIT {COUNTED} + 1) AS bounded) END \
         FROM pg_catalog.unnest($1::text[]) WITH ORDINALITY AS n (name, nth)",
        schema.quoted()
    );
    let counts = sqlx::query_as(AssertSqlSafe(sql)).bind(names).persistent(false).fetch_all(conn).await?;
    Ok(counts.into_iter().map(|(name, keys): (String, Option<i64>)| (name, keys.map(Counted::from))).collect())
}
