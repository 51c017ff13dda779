use std::time::{Duration, SystemTime, UNIX_EPOCH};

use serde_json::json;
use sqlx::{AssertSqlSafe, PgPool};

use crate::database::Running;
use crate::demo::screen::Screen;
use crate::error::CliError;
use crate::progress::Progress;
use pg_limiter::migrate::Migrator;
use pg_limiter::{Limiter, LimiterConfig, Limits, Schema};

const CONNECTIONS: u32 = 8;

/// The demo's own schema.
pub(super) struct Stage {
    pub(super) pool: PgPool,
    pub(super) schema: Schema,
    pub(super) screen: Screen,
    private_source: Option<String>,
}

impl Stage {
    /// Creates the schema. Its name contains the time, so it cannot collide with an existing one. (The prefix `pg_` is
    /// reserved.)
    pub(super) async fn set(running: &Running, json: bool) -> Result<Self, CliError> {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let schema = Schema::new(&format!("limiter_demo_{}", now.as_millis()))?;
        let pool = running.pool(CONNECTIONS).await?;
        let _progress = Progress::of("creating the tables and functions");
        Migrator::new(schema.clone()).run(&pool).await?;
        let private_source = running.private_source().map(str::to_owned);
        Ok(Self { pool, schema, screen: Screen::new(json), private_source })
    }

    pub(super) async fn introduce(&self) -> Result<(), CliError> {
        let version: String = sqlx::query_scalar("SHOW server_version").fetch_one(&self.pool).await?;
        let place = self.private_source.clone().unwrap_or_else(|| format!("your server, version {version}"));
        let line = format!(
            "Every line below is a real call on {place}.\nThe demo runs in the schema {}, and drops it at the end.",
            self.schema
        );
        self.screen.show(line, json!({"server": place, "schema": self.schema.name()}))
    }

    pub(super) fn limiter(&self, limits: Limits) -> Limiter {
        let mut config = LimiterConfig::default();
        config.schema = self.schema.clone();
        Limiter::with_config(self.pool.clone(), limits, config)
    }

    /// Pauses after a scene.
    pub(super) async fn next(&self, progress: &Progress) {
        progress.add(1);
        tokio::time::sleep(Duration::from_millis(700)).await;
    }

    pub(super) async fn strike(self) -> Result<(), CliError> {
        let drop = format!("DROP SCHEMA {} CASCADE", self.schema.quoted());
        let dropped = sqlx::raw_sql(AssertSqlSafe(drop)).execute(&self.pool).await;
        self.pool.close().await;
        dropped
            .map(|_| ())
            .map_err(|error| CliError::failed(format!("cannot drop the schema {0}: {error}; drop it", self.schema)))
    }
}
