//! A row of the table, and what is written of it.

use jiff::Timestamp;
use sqlx::Row as _;
use sqlx::postgres::PgRow;

use crate::text::plain;

#[derive(Clone, Debug, PartialEq)]
pub(super) struct Row {
    pub(super) name: String,
    pub(super) key: String,
    pub(super) shard: i32,
    pub(super) shards: i32,
    pub(super) value: f64,
    pub(super) ts: i64,
    pub(super) idle_at: i64,
    pub(super) earlier_counts: Option<Vec<f64>>,
    /// Of the whole bucket, in its first row, if its limit is known.
    pub(super) balance: Option<f64>,
}

pub(super) const COLUMNS: &str = "name, key, shard, shards, value, ts, idle_at, earlier_counts";

impl Row {
    pub(super) fn read(row: &PgRow) -> Result<Self, sqlx::Error> {
        Ok(Self {
            name: row.try_get(0)?,
            key: row.try_get(1)?,
            shard: row.try_get(2)?,
            shards: row.try_get(3)?,
            value: row.try_get(4)?,
            ts: row.try_get(5)?,
            idle_at: row.try_get(6)?,
            earlier_counts: row.try_get(7)?,
            balance: None,
        })
    }
}

/// RFC 3339 in UTC, exactly; nothing where there is no such year.
pub(super) fn time(micros: i64) -> Option<String> {
    Timestamp::from_microsecond(micros).ok().map(|time| time.to_string())
}

pub(super) fn numbers(counts: &[f64]) -> String {
    counts.iter().map(|count| plain(*count)).collect::<Vec<_>>().join(",")
}
