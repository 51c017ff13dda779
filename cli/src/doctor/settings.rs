//! Settings as a new session of this role gets them, without changes that this session made.

use std::collections::HashMap;

use sqlx::Row;

use crate::doctor::session::Session;

const NAMES: &str = "'synchronous_commit', 'fsync', 'full_page_writes', 'autovacuum', 'track_counts', \
                     'default_transaction_read_only', 'max_connections', 'superuser_reserved_connections', \
                     'statement_timeout', 'lock_timeout', 'idle_in_transaction_session_timeout', \
                     'transaction_timeout', 'max_pred_locks_per_transaction', 'deadlock_timeout'";

#[derive(Debug, Default)]
pub(super) struct Settings(HashMap<String, Setting>);

#[derive(Debug)]
struct Setting {
    value: String,
    source: String,
}

impl Settings {
    pub(super) async fn read(session: &mut Session) -> Result<Self, sqlx::Error> {
        let sql = format!("SELECT name, reset_val, source FROM pg_settings WHERE name IN ({NAMES})");
        let mut settings = HashMap::new();
        for row in session.plain_rows(&sql).await? {
            let value = row.try_get::<Option<String>, _>(1)?.unwrap_or_default();
            settings.insert(row.try_get(0)?, Setting { value, source: row.try_get(2)? });
        }
        Ok(Self(settings))
    }

    pub(super) fn get(&self, name: &str) -> Option<&str> {
        self.0.get(name).map(|setting| setting.value.as_str())
    }

    /// The value as a number, in the unit of the setting.
    pub(super) fn number(&self, name: &str) -> Option<i64> {
        self.get(name)?.parse().ok()
    }

    /// Formats `name=value`, with the source of the value.
    pub(super) fn shown(&self, name: &str) -> String {
        match self.0.get(name) {
            None => format!("{name} is unknown"),
            Some(Setting { value, source }) => match source.as_str() {
                "user" => format!("{name}={value} (of the role)"),
                "database" => format!("{name}={value} (of the database)"),
                "database user" => format!("{name}={value} (of the role in this database)"),
                _ => format!("{name}={value}"),
            },
        }
    }
}
