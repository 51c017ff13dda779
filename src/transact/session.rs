//! Opens sessions of the limiter's own, with settings of their own.

use std::collections::HashMap;

use sqlx::{Connection, PgConnection, PgPool, Row};

use crate::error::SettingsIgnored;
use crate::sql::own_options;

/// Connects, and checks that the settings are in effect, in the form in which the server shows them (times are in
/// milliseconds). A pooler may drop them silently and then run each transaction in a different session.
///
/// # Errors
/// An error that [`refuses_settings`](crate::error::refuses_settings) recognises, if the connection has no session of
/// its own.
pub(crate) async fn open(pool: &PgPool, settings: &[(&str, &str)]) -> Result<PgConnection, sqlx::Error> {
    let options = own_options(pool).options(settings.iter().copied());
    let mut connection = PgConnection::connect_with(&options).await?;
    // Sent in one message: a pooler may send the parts of a prepared statement to different sessions.
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
