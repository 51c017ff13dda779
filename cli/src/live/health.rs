//! Doctor's findings, and the sizes of the tables.

use sqlx::AssertSqlSafe;

use crate::doctor::{self, Finding, State, TABLES};
use crate::error::CliError;
use crate::export::now;
use crate::live::live::Live;

/// The size of a table, from the server's statistics.
#[derive(Clone, Debug)]
pub(crate) struct TableSize {
    pub(crate) table: String,
    pub(crate) bytes: i64,
    pub(crate) index_bytes: i64,
    pub(crate) live_rows: i64,
    pub(crate) dead_rows: i64,
    /// All updates, and those that were made in place.
    pub(crate) updates: i64,
    pub(crate) updates_in_place: i64,
    /// Microseconds since the Unix epoch.
    pub(crate) vacuumed_at: Option<i64>,
}

#[derive(Clone, Debug)]
pub(crate) struct Health {
    /// Microseconds since the Unix epoch.
    pub(crate) at: i64,
    /// By check.
    pub(crate) findings: Vec<(&'static str, Finding)>,
    pub(crate) tables: Vec<TableSize>,
    /// The connections of the server in use, and the most that it accepts.
    pub(crate) connections: (i64, i64),
}

impl Live {
    /// Examines the database as `doctor` does, on a connection of its own.
    pub(crate) async fn health(&self) -> Result<Health, CliError> {
        let mut findings = doctor::findings(&self.options, &self.schema).await?;
        // The sizes and dead rows of the tables are below, and counted at another moment they would differ.
        let are_sizes = |check: &str| ["table", "table of jobs"].contains(&check);
        findings.retain(|(check, finding)| !are_sizes(check) || finding.state != State::Ok);
        for (check, finding) in &mut findings {
            if are_sizes(check) && finding.state == State::Warning {
                finding.found = "more dead rows than live ones".to_owned();
            }
        }
        let mut tx = self.begin().await?;
        let failed = |error| self.failed(error);
        let at = now(&mut tx).await.map_err(failed)?;
        let sql = format!(
            "SELECT s.relname::text, pg_table_size(s.relid), pg_indexes_size(s.relid), coalesce(s.n_live_tup, 0), \
                     coalesce(s.n_dead_tup, 0), coalesce(s.n_tup_upd, 0), coalesce(s.n_tup_hot_upd, 0), \
                     (date_part('epoch', greatest(s.last_autovacuum, s.last_vacuum)) * 1000000)::bigint \
                   FROM pg_stat_all_tables AS s WHERE s.schemaname = $1 AND s.relname IN ({TABLES}) ORDER BY s.relname"
        );
        let sizes = sqlx::query_as(AssertSqlSafe(sql)).bind(self.schema.name()).persistent(false);
        let sizes = sizes.fetch_all(&mut *tx).await.map_err(failed)?.into_iter();
        let tables =
            sizes.map(|(table, bytes, index_bytes, live_rows, dead_rows, updates, updates_in_place, vacuumed_at)| {
                TableSize { table, bytes, index_bytes, live_rows, dead_rows, updates, updates_in_place, vacuumed_at }
            });
        let tables = tables.collect();
        let sql = "SELECT (SELECT coalesce(sum(numbackends), 0)::bigint FROM pg_stat_database), \
                     current_setting('max_connections')::bigint";
        let connections = sqlx::query_as(sql).persistent(false).fetch_one(&mut *tx).await.map_err(failed)?;
        Ok(Health { at, findings, tables, connections })
    }
}
