//! A row of the table `rate_limits`, and the format of its fields.

use jiff::Timestamp;
use sqlx::Row as _;
use sqlx::postgres::PgRow;

use crate::text::plain;

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

impl Row {
    pub(crate) fn read(row: &PgRow) -> Result<Self, sqlx::Error> {
        Ok(Self {
            name: row.try_get(0)?,
            key: row.try_get(1)?,
            shard: row.try_get(2)?,
            shards: row.try_get(3)?,
            value: row.try_get(4)?,
            ts: row.try_get(5)?,
            idle_at: row.try_get(6)?,
            detail: row.try_get(7)?,
            balance: None,
        })
    }
}

/// Formats a time as RFC 3339 in UTC, exactly. Returns `None` after the year 9999.
pub(crate) fn time(micros: i64) -> Option<String> {
    Timestamp::from_microsecond(micros).ok().map(|time| time.to_string())
}

pub(crate) fn numbers(counts: &[f64]) -> String {
    counts.iter().map(|count| plain(*count)).collect::<Vec<_>>().join(",")
}
