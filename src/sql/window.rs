//! The present windows of calendar windows, which the server's time zone data decides.

use std::time::Duration;

use sqlx::{PgConnection, Row};

use crate::limit::Limit;
use crate::sql::Statements;

/// Reads the present windows of this limit: as many as fill an empty bucket.
pub(crate) struct ReadWindow(pub(crate) Limit);

/// The windows that fill an empty bucket: the present one, and those after it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(not(feature = "tower"), allow(dead_code, reason = "allowances use only the end"))]
pub(crate) struct PresentWindow {
    pub(crate) length: Duration,
    /// The time until the present window ends, and the length may change.
    pub(crate) ends_in: Duration,
}

impl ReadWindow {
    pub(crate) async fn read(
        &self,
        connection: &mut PgConnection,
        statements: &Statements,
    ) -> Result<PresentWindow, sqlx::Error> {
        let limit = &self.0;
        let query = statements.window.query().bind(limit.kind_in_sql()).bind(limit.period_micros());
        let row = query.bind(limit.windows_to_fill()).fetch_one(connection).await?;
        let length = |column: &str| {
            row.try_get(column).map(|micros: i64| Duration::from_micros(u64::try_from(micros).unwrap_or_default()))
        };
        Ok(PresentWindow { length: length("length")?, ends_in: length("ends_in")? })
    }
}
