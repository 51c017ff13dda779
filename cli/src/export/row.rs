//! The rows of the table `rate_limits`, page by page, and the format of their fields.

use jiff::Timestamp;
use sqlx::postgres::PgRow;
use sqlx::{AssertSqlSafe, FromRow, PgConnection};

use crate::text::plain;
use pg_limiter::Schema;

#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Row {
    pub(crate) name: String,
    pub(crate) key: String,
    pub(crate) shard: i32,
    pub(crate) shards: i32,
    pub(crate) value: f64,
    pub(crate) ts: i64,
    pub(crate) idle_at: i64,
    pub(crate) detail: Option<Vec<f64>>,
    /// The balance of the whole bucket. Set on its first row only, and only if its limit is known.
    pub(crate) balance: Option<f64>,
}

pub(crate) const COLUMNS: &str = "name, key, shard, shards, value, ts, idle_at, detail";

impl FromRow<'_, PgRow> for Row {
    /// Reads [`COLUMNS`].
    fn from_row(row: &PgRow) -> Result<Self, sqlx::Error> {
        let (name, key, shard, shards, value, ts, idle_at, detail) = FromRow::from_row(row)?;
        Ok(Self { name, key, shard, shards, value, ts, idle_at, detail, balance: None })
    }
}

/// The database's clock, in microseconds since the Unix epoch.
pub(crate) const CLOCK: &str = "(date_part('epoch', clock_timestamp()) * 1000000)::bigint";

/// Reads the database's clock.
pub(crate) async fn now(conn: &mut PgConnection) -> Result<i64, sqlx::Error> {
    sqlx::query_scalar(AssertSqlSafe(format!("SELECT {CLOCK}"))).persistent(false).fetch_one(conn).await
}

/// Formats a time as RFC 3339 in UTC, exactly. Returns `None` after the year 9999.
pub(crate) fn time(micros: i64) -> Option<String> {
    Timestamp::from_microsecond(micros).ok().map(|time| time.to_string())
}

pub(crate) fn numbers(counts: &[f64]) -> String {
    counts.iter().map(|count| plain(*count)).collect::<Vec<_>>().join(",")
}

/// Most rows in memory at once.
const PAGE: usize = 1_000;

pub(super) struct Pages<'a> {
    schema: &'a Schema,
    limit: Option<&'a str>,
    key: Option<&'a str>,
    /// The last row of the previous page.
    last: Option<(String, String, i32)>,
}

impl<'a> Pages<'a> {
    pub(super) const fn new(schema: &'a Schema, limit: Option<&'a str>, key: Option<&'a str>) -> Self {
        Self { schema, limit, key, last: None }
    }

    /// Returns the next page; it is empty at the end.
    pub(super) async fn next(&mut self, conn: &mut PgConnection) -> Result<Vec<Row>, sqlx::Error> {
        // An unnamed statement is planned for its arguments: NULL filters cost nothing, and a name uses the primary key.
        let sql = format!(
            "SELECT {COLUMNS} FROM {}.rate_limits \
             WHERE (name, key, shard) > ($1, $2, $3) \
               AND ($4::text IS NULL OR name = $4) AND ($5::text IS NULL OR key = $5) \
             ORDER BY name, key, shard LIMIT {PAGE}",
            self.schema.quoted()
        );
        let (name, key, shard) = match &self.last {
            Some((name, key, shard)) => (name.as_str(), key.as_str(), *shard),
            None => ("", "", -1),
        };
        let query = sqlx::query_as(AssertSqlSafe(sql)).bind(name).bind(key).bind(shard).bind(self.limit).bind(self.key);
        let rows: Vec<Row> = query.persistent(false).fetch_all(conn).await?;
        if let Some(row) = rows.last() {
            self.last = Some((row.name.clone(), row.key.clone(), row.shard));
        }
        Ok(rows)
    }
}
