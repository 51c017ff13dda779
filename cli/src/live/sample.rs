//! Reads the rows of a small table, or a sample of a large one.

use sqlx::{AssertSqlSafe, PgConnection};

use crate::export::{CLOCK, COLUMNS, Row};
use crate::live::view::{Counted, How};
use pg_limiter::Schema;

/// A table of up to this many rows is read whole.
const WHOLE: i64 = 50_000;
/// The size in pages up to which a table may be one.
const WHOLE_PAGES: i64 = 8_192;
/// About this many pages of a larger one are read at a time.
const SAMPLE_PAGES: i64 = 256;
/// The keys of a limit are counted up to this number.
const COUNTED_KEYS: u64 = 10_000;
/// The most limits that are listed.
pub(super) const NAMES: usize = 500;

/// The rows that were read at once.
pub(super) struct Sample {
    /// The database's clock, in microseconds since the Unix epoch.
    pub(super) at: i64,
    pub(super) rows: Vec<Row>,
    /// The fraction of the table that was read: 1 for a whole table.
    pub(super) share: f64,
    /// The size of the table, and of the sample.
    pub(super) pages: u64,
    pub(super) sampled_pages: u64,
}

impl Sample {
    pub(super) fn is_whole(&self) -> bool {
        self.share >= 1.0
    }
}

/// Reads the whole table, or pages of it. The same `seed` reads the same pages, as long as the table does not grow.
pub(super) async fn read(conn: &mut PgConnection, schema: &Schema, seed: u64) -> Result<Sample, sqlx::Error> {
    let table = format!("{}.rate_limits", schema.quoted());
    let sql = format!(
        "SELECT {CLOCK}, pg_relation_size($1::regclass) / current_setting('block_size')::bigint, \
           (SELECT c.reltuples::double precision FROM pg_class AS c WHERE c.oid = $1::regclass)"
    );
    let query = sqlx::query_as(AssertSqlSafe(sql)).bind(&table).persistent(false);
    let (at, pages, tuples): (i64, i64, f64) = query.fetch_one(&mut *conn).await?;
    if pages <= WHOLE_PAGES && tuples <= WHOLE as f64 {
        // The one scan, of a small table. LIMIT bounds it if the statistics are old.
        sqlx::raw_sql("SET LOCAL enable_seqscan = on").execute(&mut *conn).await?;
        let sql = format!("SELECT {COLUMNS} FROM {table} LIMIT {}", WHOLE + 1);
        let rows: Vec<Row> = sqlx::query_as(AssertSqlSafe(sql)).persistent(false).fetch_all(&mut *conn).await?;
        sqlx::raw_sql("SET LOCAL enable_seqscan = off").execute(&mut *conn).await?;
        if rows.len() as i64 <= WHOLE {
            let pages = pages.unsigned_abs();
            return Ok(Sample { at, rows, share: 1.0, pages, sampled_pages: pages });
        }
    }
    let share = (SAMPLE_PAGES as f64 / pages.max(1) as f64).min(1.0);
    let sql = format!(
        "SELECT {COLUMNS} FROM {table} TABLESAMPLE SYSTEM ({}) REPEATABLE ({seed}) LIMIT {WHOLE}",
        share * 100.0
    );
    let rows = sqlx::query_as(AssertSqlSafe(sql)).persistent(false).fetch_all(conn).await?;
    // Less than 1, because the rows are a sample even if it happens to have all pages.
    let share = share.min(0.999_999);
    let sampled_pages = pages.min(SAMPLE_PAGES).unsigned_abs();
    Ok(Sample { at, rows, share, pages: pages.unsigned_abs(), sampled_pages })
}

/// Reads the rows of these buckets, by primary key.
pub(super) async fn rows_of(
    conn: &mut PgConnection,
    schema: &Schema,
    buckets: &[(&str, &str)],
) -> Result<Vec<Row>, sqlx::Error> {
    if buckets.is_empty() {
        return Ok(Vec::new());
    }
    let sql = format!(
        "SELECT r.* FROM unnest($1::text[], $2::text[]) AS w (name, key) CROSS JOIN LATERAL \
           (SELECT {COLUMNS} FROM {}.rate_limits AS t WHERE t.name = w.name AND t.key = w.key ORDER BY t.shard) AS r",
        schema.quoted()
    );
    let (names, keys): (Vec<&str>, Vec<&str>) = buckets.iter().copied().unzip();
    sqlx::query_as(AssertSqlSafe(sql)).bind(names).bind(keys).persistent(false).fetch_all(conn).await
}

/// The names of the limits that have rows, one look-up in the primary key for each. One more than [`NAMES`] if there are more.
pub(super) async fn names(conn: &mut PgConnection, schema: &Schema) -> Result<Vec<String>, sqlx::Error> {
    let table = format!("{}.rate_limits", schema.quoted());
    let sql = format!(
        "WITH RECURSIVE n AS ( \
           (SELECT r.name FROM {table} AS r ORDER BY r.name LIMIT 1) \
           UNION ALL \
           SELECT (SELECT r.name FROM {table} AS r WHERE r.name > n.name ORDER BY r.name LIMIT 1) \
           FROM n WHERE n.name IS NOT NULL) \
         SELECT n.name FROM n WHERE n.name IS NOT NULL LIMIT {}",
        NAMES + 1
    );
    sqlx::query_scalar(AssertSqlSafe(sql)).persistent(false).fetch_all(conn).await
}

/// Counts the keys of limits, each up to a bound.
pub(super) async fn count_keys(
    conn: &mut PgConnection,
    schema: &Schema,
    names: &[String],
) -> Result<Vec<(String, Counted)>, sqlx::Error> {
    let sql = format!(
        "SELECT n.name, (SELECT count(*) FROM (SELECT FROM {}.rate_limits AS r WHERE r.name = n.name AND r.shard = 0 \
           LIMIT {}) AS bounded) FROM unnest($1::text[]) AS n (name)",
        schema.quoted(),
        COUNTED_KEYS + 1
    );
    let counts = sqlx::query_as(AssertSqlSafe(sql)).bind(names).persistent(false).fetch_all(conn).await?;
    let counted = |(name, keys): (String, i64)| (name, Counted::up_to(COUNTED_KEYS, keys.unsigned_abs()));
    Ok(counts.into_iter().map(counted).collect())
}

/// The larger of a bounded count and an estimate from the sample.
pub(super) fn estimated(counted: Counted, in_sample: f64) -> Counted {
    match counted.how {
        How::AtLeast if in_sample > counted.number as f64 => {
            Counted { number: in_sample.round() as u64, how: How::Estimated }
        }
        _ => counted,
    }
}
