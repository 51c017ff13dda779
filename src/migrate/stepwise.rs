//! Migrations on an engine whose schema changes are not transactional.

use std::time::Duration;

use sqlx::{Connection, PgConnection, PgPool};

use crate::error::{MigrationCause, classify_migration};
use crate::migrate::failure::Failure;
use crate::migrate::read::untrusted;
use crate::migrate::roles::{Until, become_owner};
use crate::migrate::runner::{SETTINGS, report};
use crate::migrate::script::record_migration;
use crate::migrate::statements::statements;
use crate::migrate::unnamed::{execute, unnamed};
use crate::migrate::{MigrateReport, Migrator};
use crate::retry::{Attempts, RetryPolicy};
use crate::sql::own_options;

impl Migrator {
    /// Runs statement by statement, and writes the row of a version last. Each statement can be repeated, so the next run
    /// continues after any failure. Meanwhile a second connection keeps the row of version 0 locked, in a transaction that ends
    /// with the connection. Other migrators wait for this lock, on any engine.
    pub(super) async fn stepwise(&self, pool: &PgPool) -> Result<MigrateReport, Failure> {
        let options = own_options(pool);
        let mut conn = PgConnection::connect_with(&options).await?;
        let mut holder = PgConnection::connect_with(&options).await?;
        let result = self.step_by_step(&mut conn, &mut holder).await;
        for connection in [conn, holder] {
            let _ = connection.close().await; // The result does not matter.
        }
        result
    }

    async fn step_by_step(&self, conn: &mut PgConnection, holder: &mut PgConnection) -> Result<MigrateReport, Failure> {
        let settings = SETTINGS.iter().filter(|(name, _)| *name != "lock_timeout");
        let settings: Vec<String> = settings.map(|(name, value)| format!("SET {name} = {value}")).collect();
        execute(conn, settings.join("; ")).await?;
        for conn in [&mut *conn, &mut *holder] {
            become_owner(conn, &self.schema, Until::Disconnect).await?;
        }
        let (installed, plan) = self.plan(conn).await?;
        if plan.is_empty() {
            return Ok(report(&installed, &plan, Vec::new()));
        }
        for sql in self.preparations(&installed, &plan) {
            persistently(conn, &sql).await?;
        }
        let history = format!("{}.migrations", self.schema.quoted());
        let zero = format!(
            "INSERT INTO {history} (version, name, sha256, crate_version) VALUES (0, 'lock', '', '') \
             ON CONFLICT (version, name) DO NOTHING"
        );
        execute(conn, zero).await?;
        let mut lock = holder.begin_with("BEGIN ISOLATION LEVEL READ COMMITTED").await?;
        let row = format!("SELECT version FROM {history} WHERE version = 0 FOR UPDATE");
        unnamed(row).query().execute(&mut *lock).await?;
        // The previous migrator may have finished the work.
        let (installed, plan) = self.plan(conn).await?;
        let mut applied = Vec::new();
        for migration in &plan.migrations {
            for statement in statements(&migration.sql) {
                persistently(conn, statement).await?;
            }
            persistently(conn, &record_migration(&self.schema, migration)).await?;
            applied.push(migration.name);
        }
        for function in &plan.functions {
            for statement in statements(&function.sql) {
                persistently(conn, statement).await?;
            }
        }
        if let Some(sql) = self.removal(&plan) {
            persistently(conn, &sql).await?;
        }
        for sql in self.claims(&plan) {
            persistently(conn, &sql).await?;
        }
        self.trust(untrusted(conn, &self.schema, plan.parts).await?)?;
        // The transaction wrote nothing, and the changed catalog may already have aborted it.
        let _ = lock.rollback().await;
        Ok(report(&installed, &plan, applied))
    }
}

/// Runs a statement and retries it after conflicts: on such an engine, any concurrent schema change conflicts.
async fn persistently(conn: &mut PgConnection, statement: &str) -> Result<(), sqlx::Error> {
    let mut attempts = Attempts::new(&RetryPolicy {
        max_attempts: 20,
        initial: Duration::from_millis(20),
        max: Duration::from_secs(1),
        deadline: Duration::from_secs(60),
        ..RetryPolicy::default()
    });
    loop {
        let Err(error) = execute(conn, statement.to_owned()).await else { return Ok(()) };
        match attempts.next_delay().filter(|_| classify_migration(&error) == MigrationCause::Clash) {
            Some(delay) => tokio::time::sleep(delay).await,
            None => return Err(error),
        }
    }
}
