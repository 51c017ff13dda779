//! Sessions with settings of their own.

use std::collections::HashMap;

use sqlx::postgres::PgConnectOptions;
use sqlx::{Connection, PgConnection, Row};

use crate::error::SettingsIgnored;

/// Connects, and makes sure that the settings hold, as the server writes them (times are in milliseconds): a pooler may drop
/// them without a word, and then hand each transaction to another session.
///
/// # Errors
/// One that [`refuses_settings`](crate::error::refuses_settings) knows, if there is no session of one's own.
pub(crate) async fn open(options: &PgConnectOptions, settings: &[(&str, &str)]) -> Result<PgConnection, sqlx::Error> {
    let mut connection = PgConnection::connect_with(&options.clone().options(settings.iter().copied())).await?;
    // In one message: a prepared statement might be looked for elsewhere.
    let sql = "SELECT name, setting FROM pg_catalog.pg_settings WHERE name IN ('default_transaction_isolation', \
               'statement_timeout', 'synchronous_commit', 'lock_timeout')";
    let mut kept = HashMap::new();
    for row in sqlx::raw_sql(sql).fetch_all(&mut connection).await? {
        kept.insert(row.try_get::<String, _>(0)?, row.try_get::<String, _>(1)?);
    }
    match settings.iter().find(|(name, value)| kept.get(*name).is_none_or(|kept| kept != value)) {
        Some((name, _)) => Err(SettingsIgnored((*name).to_owned()).into()),
        None => Ok(connection),
    }
}
