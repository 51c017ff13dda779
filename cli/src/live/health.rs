//! Doctor's findings, and the sizes of the tables.

use serde::Serialize;
use sqlx::{AssertSqlSafe, Row as _};

use crate::doctor::{self, State, TABLES};
use crate::error::CliError;
use crate::live::live::Live;
use crate::live::sample;

#[derive(Clone, Debug, Serialize)]
pub(crate) struct HealthFinding {
    pub(crate) check: &'static str,
    /// ok, note, warning or problem.
    pub(crate) state: &'static str,
    pub(crate) found: String,
    pub(crate) advice: Vec<String>,
}

/// The size of a table, from the server's statistics.
#[derive(Clone, Debug, Serialize)]
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

#[derive(Clone, Debug, Serialize)]
pub(crate) struct Health {
    /// Microseconds since the Unix epoch.
    pub(crate) at: i64,
    pub(crate) findings: Vec<HealthFinding>,
    pub(crate) tables: Vec<TableSize>,
    /// The connections of the server in use, and the most that it accepts.
    pub(crate) connections: (i64, i64),
}

impl Live {
    /// Examines the database as `doctor` does, on a connection of its own.
    pub(crate) async fn health(&self) -> Result<Health, CliError> {
        let findings = doctor::findings(&self.options, &self.schema).await?;
        // The sizes and dead rows of the tables are below, and counted at another moment they would differ.
        let are_sizes = |check: &str| ["table", "table of jobs"].contains(&check);
        let findings = findings.into_iter().filter(|(check, finding)| !are_sizes(check) || finding.state != State::Ok);
        let findings = findings.map(|(check, finding)| HealthFinding {
            check,
            state: finding.state.as_str(),
            found: match finding.state {
                State::Warning if are_sizes(check) => "more dead rows than live ones".to_owned(),
                _ => finding.found,
            },
            advice: finding.advice,
        });
        let findings = findings.collect();
        let mut tx = self.begin().await?;
        let failed = |error| self.failed(error);
        let at = sample::now(&mut tx).await.map_err(failed)?;
        let sql = format!(
            "SELECT s.relname::text, pg_table_size(s.relid), pg_indexes_size(s.relid), coalesce(s.n_live_tup, 0), \
                     coalesce(s.n_dead_tup, 0), coalesce(s.n_tup_upd, 0), coalesce(s.n_tup_hot_upd, 0), \
                     (date_part('epoch', greatest(s.last_autovacuum, s.last_vacuum)) * 1000000)::bigint \
                   FROM pg_stat_all_tables AS s WHERE s.schemaname = $1 AND s.relname IN ({TABLES}) ORDER BY s.relname"
        );
        let rows = sqlx::query(AssertSqlSafe(sql))
            .bind(self.schema.name())
            .persistent(false)
            .fetch_all(&mut *tx)
            .await
            .map_err(failed)?;
        let tables = rows.iter().map(|row| {
            Ok(TableSize {
                table: row.try_get(0)?,
                bytes: row.try_get(1)?,
                index_bytes: row.try_get(2)?,
                live_rows: row.try_get(3)?,
                dead_rows: row.try_get(4)?,
                updates: row.try_get(5)?,
                updates_in_place: row.try_get(6)?,
                vacuumed_at: row.try_get(7)?,
            })
        });
        let tables = tables.collect::<Result<_, sqlx::Error>>().map_err(failed)?;
        let sql = "SELECT (SELECT coalesce(sum(numbackends), 0)::bigint FROM pg_stat_database), \
                     current_setting('max_connections')::bigint";
        let row = sqlx::query(AssertSqlSafe(sql)).persistent(false).fetch_one(&mut *tx).await.map_err(failed)?;
        let connections = (row.try_get(0).map_err(failed)?, row.try_get(1).map_err(failed)?);
        Ok(Health { at, findings, tables, connections })
    }
}
