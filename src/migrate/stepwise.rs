//! Migrating an engine whose schema changes are not transactional.

use std::time::Duration;

use sqlx::{Connection, PgConnection, PgPool};

use crate::error::{MigrationCause, classify_migration};
use crate::migrate::migrations::{Migration, NEWEST, migrations};
use crate::migrate::runner::{Failure, execute, once};
use crate::migrate::statements::statements;
use crate::migrate::{MigrateReport, Migrator};
use crate::retry::{Attempts, RetryPolicy};

impl Migrator {
    /// Statement by statement, each of which may be run again, and the row of a version last: whatever fails, the next run
    /// goes on. A second connection holds the row of version 0 locked meanwhile, in a transaction that ends with it: that
    /// is what other migrators wait for, on any engine.
    pub(super) async fn stepwise(&self, pool: &PgPool) -> Result<MigrateReport, Failure> {
        let options = pool.connect_options();
        let mut conn = PgConnection::connect_with(&options).await?;
        let mut holder = PgConnection::connect_with(&options).await?;
        let result = self.step_by_step(&mut conn, &mut holder).await;
        for connection in [conn, holder] {
            let _ = connection.close().await; // It is gone in any case.
        }
        result
    }

    async fn step_by_step(&self, conn: &mut PgConnection, holder: &mut PgConnection) -> Result<MigrateReport, Failure> {
        self.prepare(conn).await?;
        let history = format!("{}.rate_limits_migrations", self.schema.quoted());
        let insert = format!("INSERT INTO {history} (version, name) VALUES ($1, $2) ON CONFLICT (version) DO NOTHING");
        once(insert.clone()).query().bind(0).bind("lock").execute(&mut *conn).await?;
        let mut lock = holder.begin_with("BEGIN ISOLATION LEVEL READ COMMITTED").await?;
        let row = format!("SELECT version FROM {history} WHERE version = 0 FOR UPDATE");
        once(row).query().execute(&mut *lock).await?;
        let found = self.found(conn).await?;
        let mut applied = Vec::new();
        for Migration { version, name, sql } in migrations(&self.schema) {
            if version <= found {
                continue;
            }
            for statement in statements(&sql) {
                persistently(conn, statement).await?;
            }
            once(insert.clone()).query().bind(version).bind(name).execute(&mut *conn).await?;
            applied.push(version);
        }
        // Nothing was written in it, and a changed catalog may have ended it.
        let _ = lock.rollback().await;
        Ok(MigrateReport { version: NEWEST, applied })
    }
}

/// Each statement is tried again by itself: other changes of the schema, by whomever, are conflicts there.
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
