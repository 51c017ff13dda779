//! Doctor's findings, and the sizes of the tables.

use serde::Deserialize;
use sqlx::AssertSqlSafe;

use crate::error::CliError;
use crate::operate::doctor::{self, Finding, State, TABLES};
use crate::operate::live::live::Live;

/// The size of a table, from the server's statistics.
#[derive(Clone, Debug, Deserialize)]
pub(crate) struct TableSize {
    #[serde(rename = "relname")]
    pub(crate) table: String,
    pub(crate) bytes: i64,
    pub(crate) index_bytes: i64,
    pub(crate) live_rows: u64,
    pub(crate) dead_rows: u64,
    /// All updates, and those that were made in place.
    pub(crate) updates: i64,
    pub(crate) updates_in_place: i64,
    pub(crate) vacuumed_at: Option<i64>,
}

#[derive(Clone, Debug)]
pub(crate) struct Health {
    pub(crate) at: i64,
    /// By check.
    pub(crate) findings: Vec<(&'static str, Finding)>,
    pub(crate) tables: Vec<TableSize>,
    /// The connections of the server in use, and the most that it accepts.
    pub(crate) connections: (u64, u64),
}

impl Live {
    /// Examines the database as `doctor` does, on a connection of its own.
    pub(crate) async fn health(&self) -> Result<Health, CliError> {
        let mut findings = doctor::findings(&self.pool.connect_options(), &self.schema).await?;
        // The sizes and dead rows of the tables are below, and counted at another moment they would differ.
        let are_sizes = |check: &str| ["table", "table of jobs"].contains(&check);
        findings.retain(|(check, finding)| !are_sizes(check) || finding.state != State::Ok);
        for (check, finding) in &mut findings {
            if are_sizes(check) && finding.state == State::Warning {
                finding.found = "more dead rows than live ones".to_owned();
            }
        }
        let sql = format!(
            "SELECT to_json(t)::text FROM ( \
               SELECT s.relname, pg_table_size(s.relid) AS bytes, pg_indexes_size(s.relid) AS index_bytes, \
                 coalesce(s.n_live_tup, 0) AS live_rows, coalesce(s.n_dead_tup, 0) AS dead_rows, \
                 coalesce(s.n_tup_upd, 0) AS updates, coalesce(s.n_tup_hot_upd, 0) AS updates_in_place, \
                 (date_part('epoch', greatest(s.last_autovacuum, s.last_vacuum)) * 1000000)::bigint AS vacuumed_at \
               FROM pg_stat_all_tables AS s WHERE s.schemaname = $1 AND s.relname IN ({TABLES}) ORDER BY s.relname) AS t"
        );
        let tables = self.rows(sqlx::query_as(AssertSqlSafe(sql)).bind(self.schema.name())).await?;
        let sql = "SELECT json_build_array((SELECT coalesce(sum(numbackends), 0) FROM pg_stat_database), \
                     current_setting('max_connections')::bigint)::text";
        let connections = self.rows(sqlx::query_as(sql)).await?.pop().unwrap_or_default();
        Ok(Health { at: self.now().await?, findings, tables, connections })
    }
}
