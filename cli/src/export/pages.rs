//! Reads the rows page by page.

use sqlx::{AssertSqlSafe, PgConnection};

use crate::export::row::{COLUMNS, Row};
use pg_limiter::Schema;

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
        let query = sqlx::query(AssertSqlSafe(sql)).bind(name).bind(key).bind(shard).bind(self.limit).bind(self.key);
        let rows = query.persistent(false).fetch_all(conn).await?;
        let rows = rows.iter().map(Row::read).collect::<Result<Vec<_>, _>>()?;
        if let Some(row) = rows.last() {
            self.last = Some((row.name.clone(), row.key.clone(), row.shard));
        }
        Ok(rows)
    }
}
