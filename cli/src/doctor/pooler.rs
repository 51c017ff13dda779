//! Checks for a pooler between this machine and the server.

use std::collections::BTreeSet;

use sqlx::postgres::PgConnectOptions;
use sqlx::{Connection, PgConnection};

use crate::database::connect_with;
use crate::doctor::report::Finding;
use crate::doctor::session::ask;
use pg_limiter::Error;

const ROUNDS: usize = 4;
const NONE: &str = "BEGIN READ ONLY; SELECT current_setting('pg_limiter.doctor', true); ROLLBACK";

/// Identifies the server process behind a connection. The start time is part of it, because a new process may get the same
/// pid.
async fn backend(connection: &mut PgConnection) -> Result<String, sqlx::Error> {
    let sql = "BEGIN READ ONLY; SELECT concat_ws(' ', a.pid, date_part('epoch', a.backend_start)) \
               FROM pg_catalog.pg_stat_activity AS a WHERE a.pid = pg_catalog.pg_backend_pid(); ROLLBACK";
    ask::<(String,)>(connection, sql).await?.pop().map(|(id,)| id).ok_or(sqlx::Error::RowNotFound)
}

/// Uses two connections at once: behind a pooler in transaction mode, one server process serves both.
pub(super) async fn check(first: &mut PgConnection, options: &PgConnectOptions) -> Result<Finding, sqlx::Error> {
    let mut second = match connect_with(options).await {
        Ok(second) => second,
        Err(error) => {
            let found = format!("not checked: cannot open a second connection: {}", Error::database_message(&error));
            return Ok(Finding::note(found)
                .advise("The limiter needs a connection for each lane, in addition to those of your pool."));
        }
    };
    let (mut firsts, mut seconds) = (BTreeSet::new(), BTreeSet::new());
    for _ in 0..ROUNDS {
        firsts.insert(backend(first).await?);
        seconds.insert(backend(&mut second).await?);
    }
    let _ = second.close().await;
    let moves = firsts.len() > 1 || seconds.len() > 1;
    if !moves && firsts.is_disjoint(&seconds) {
        return Ok(Finding::ok("none in transaction mode: each connection has its own server process"));
    }
    Ok(Finding::note("a pooler in transaction mode: connections share server processes")
        .advise("Set LimiterConfig::named_statements to false. If it is pgbouncer 1.21 or newer with max_prepared_statements")
        .advise("above 0, set LimiterConfig::connections to Connections::Pool instead. (Guide: poolers.)"))
}

/// Checks whether start-up settings reach the server. `refused`: the error with which a pooler rejected the driver's own.
pub(super) async fn settings(refused: Option<&str>, options: &PgConnectOptions) -> Result<Finding, sqlx::Error> {
    if let Some(message) = refused {
        return Ok(Finding::problem(format!("a pooler refuses the start-up settings of sqlx: {message}"))
            .advise("Add extra_float_digits to ignore_startup_parameters in pgbouncer.ini, or connect with")
            .advise("PgConnectOptions::extra_float_digits(None)."));
    }
    let over_pool =
        "Set LimiterConfig::connections to Connections::Pool: the limiter's own connections need start-up settings.";
    let mut connection = match connect_with(&options.clone().options([("pg_limiter.doctor", "1")])).await {
        Ok(connection) => connection,
        Err(error) => {
            let message = Error::database_message(&error);
            return Ok(match Error::refuses_settings(&error) {
                true => Finding::note(format!("a pooler refuses them: {message}")).advise(over_pool),
                false => Finding::note(format!("not checked: cannot open a connection: {message}")),
            });
        }
    };
    let value = ask::<(Option<String>,)>(&mut connection, NONE).await;
    let _ = connection.close().await;
    let (value,) = value?.pop().ok_or(sqlx::Error::RowNotFound)?;
    Ok(match value.as_deref() {
        Some("1") => Finding::ok("they arrive: the limiter's own connections have their isolation level and time-out"),
        _ => Finding::warning("a pooler silently ignores them").advise(over_pool),
    })
}
