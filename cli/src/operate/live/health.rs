//! Doctor's findings, and the sizes of the tables.

use sqlx::AssertSqlSafe;

use crate::error::Result;
use crate::operate::doctor::{self, Findings, State, TABLES, Table};
use crate::operate::live::live::Live;

#[derive(Clone, Debug)]
pub(crate) struct Health {
    pub(crate) at: i64,
    pub(crate) findings: Findings,
    pub(crate) tables: Vec<Table>,
    /// The connections of the server in use, and the most that it accepts.
    pub(crate) connections: (u64, u64),
}

impl Live {
    /// Examines the database as `doctor` does, on a connection of its own.
    pub(crate) async fn health(&self) -> Result<Health> {
        let mut findings = doctor::findings(&self.pool.connect_options(), &self.schema).await?;
        // The sizes and dead rows of the tables are below, and counted at another moment they would differ.
        let are_sizes = |check: &str| ["table", "table of jobs"].contains(&check);
        findings.retain(|(check, finding)| !are_sizes(check) || finding.state != State::Ok);
        for (check, finding) in &mut findings {
            if are_sizes(check) && finding.state == State::Warning {
                finding.found = "more dead rows than live ones".to_owned();
            }
        }
        let sql = Table::query(&doctor::literal(self.schema.name()), TABLES);
        let tables = self.rows(sqlx::query_as(AssertSqlSafe(sql))).await?;
        let sql = "SELECT json_build_array((SELECT coalesce(sum(numbackends), 0) FROM pg_stat_database), \
                     current_setting('max_connections')::bigint)::text";
        let connections = self.rows(sqlx::query_as(sql)).await?.pop().unwrap_or_default();
        Ok(Health { at: self.now().await?, findings, tables, connections })
    }
}
