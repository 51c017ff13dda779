//! What is between this machine and the server.

use std::collections::BTreeSet;

use sqlx::postgres::PgConnectOptions;
use sqlx::{Connection, PgConnection, Row};

use crate::database::connect_with;
use crate::doctor::finding::Finding;
use crate::doctor::session::ask;
use pg_limiter::Error;

const ROUNDS: usize = 4;
const NONE: &str = "BEGIN READ ONLY; SELECT current_setting('pg_limiter.doctor', true); ROLLBACK";

/// The server processes that answer on a connection: one that was replaced may have the number of the one before.
async fn backend(connection: &mut PgConnection) -> Result<String, sqlx::Error> {
    let sql = "BEGIN READ ONLY; SELECT concat_ws(' ', a.pid, date_part('epoch', a.backend_start)) \
               FROM pg_catalog.pg_stat_activity AS a WHERE a.pid = pg_catalog.pg_backend_pid(); ROLLBACK";
    ask(connection, sql).await?.first().ok_or(sqlx::Error::RowNotFound)?.try_get(0)
}

/// Two connections at once: behind a pooler in transaction mode, one server process answers both.
pub(super) async fn check(first: &mut PgConnection, options: &PgConnectOptions) -> Result<Finding, sqlx::Error> {
    let mut second = match connect_with(options).await {
        Ok(second) => second,
        Err(error) => {
            let found =
                format!("not looked at: there is no second connection to be had: {}", Error::database_message(&error));
            return Ok(Finding::note(found)
                .advise("The limiter needs a connection for each lane, besides those of your pool."));
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
        return Ok(Finding::ok("none in transaction mode: each connection has a server process of its own"));
    }
    Ok(Finding::note("there is one in transaction mode: connections share server processes")
        .advise("Set LimiterConfig::named_statements to false; or, if it is pgbouncer 1.21 or newer with")
        .advise("max_prepared_statements above 0, LimiterConfig::connections to Connections::Pool. (Guide: poolers.)"))
}

/// Whether settings that are asked for at start-up arrive. `refused` says that those of the driver were refused already.
pub(super) async fn settings(refused: Option<&str>, options: &PgConnectOptions) -> Result<Finding, sqlx::Error> {
    if let Some(message) = refused {
        return Ok(Finding::problem(format!("a pooler refuses what sqlx asks for at start-up: {message}"))
            .advise("Add extra_float_digits to ignore_startup_parameters in pgbouncer.ini, or connect with")
            .advise("PgConnectOptions::extra_float_digits(None)."));
    }
    let over_pool =
        "Set LimiterConfig::connections to Connections::Pool: the limiter's own connections need such settings.";
    let mut connection = match connect_with(&options.clone().options([("pg_limiter.doctor", "1")])).await {
        Ok(connection) => connection,
        Err(error) if Error::refuses_settings(&error) => {
            return Ok(
                Finding::note(format!("refused, by a pooler: {}", Error::database_message(&error))).advise(over_pool)
            );
        }
        Err(error) => {
            return Ok(Finding::note(format!(
                "not looked at: there is no connection to be had: {}",
                Error::database_message(&error)
            )));
        }
    };
    let value = ask(&mut connection, NONE).await;
    let _ = connection.close().await;
    let value: Option<String> = value?.first().ok_or(sqlx::Error::RowNotFound)?.try_get(0)?;
    Ok(match value.as_deref() {
        Some("1") => Finding::ok("they arrive: the limiter's own connections have their isolation level and time-out"),
        _ => Finding::warning("ignored without a word, by a pooler").advise(over_pool),
    })
}
