//! Checks the engine, the isolation levels, the clock, and the connection: its encryption, and a pooler on its way.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use sqlx::Connection;
use sqlx::postgres::PgSslMode;

use crate::database::connect_with;
use crate::operate::doctor::{Finding, PLAIN, Session, ask, first};
use crate::text::shown;
use pg_limiter::Error;

/// The oldest and the newest version of PostgreSQL that the tests pass on.
const OLDEST: u32 = 13;
const NEWEST: u32 = 18;
/// The oldest version that runs the SQL. PostgreSQL itself no longer supports it.
const OLDEST_THAT_RUNS: u32 = 11;
const OLDEST_YUGABYTE: (u32, u32) = (2024, 2);
/// Other engines that speak the protocol, by a word in their version string.
const OTHERS: [&str; 8] =
    ["CockroachDB", "Redshift", "Greenplum", "Materialize", "RisingWave", "CrateDB", "QuestDB", "Spanner"];

pub(super) async fn engine(session: &mut Session) -> sqlx::Result<Finding> {
    let (version,): (String,) = first(ask(&mut session.connection, PLAIN, "SELECT version()").await?)?;
    let (finding, is_yugabyte) = judge_engine(&version);
    session.is_yugabyte = is_yugabyte;
    Ok(finding)
}

/// Returns also whether it is YugabyteDB. `text` is the result of `version()`.
fn judge_engine(text: &str) -> (Finding, bool) {
    let other = OTHERS.into_iter().find(|name| text.contains(name));
    let version = text.strip_prefix("PostgreSQL ").and_then(|rest| rest.split_whitespace().next());
    let version = version.filter(|_| other.is_none()).unwrap_or_default();
    let release = pg_limiter::Engine::yugabyte_release(version);
    let mut parts = release.unwrap_or(version).split(|c: char| !c.is_ascii_digit()).map_while(|part| part.parse().ok());
    let found = format!("PostgreSQL {version}");
    let update = format!("Update to PostgreSQL {OLDEST} or later.");
    let finding = match (release, parts.next(), parts.next()) {
        (None, Some(OLDEST..=NEWEST), _) => Finding::ok(found),
        (None, Some(OLDEST_THAT_RUNS..OLDEST), _) => {
            Finding::warning(format!("{found}: the SQL runs, but this version is not supported")).advise(update)
        }
        (None, Some(0..OLDEST_THAT_RUNS), _) => Finding::problem(format!("{found} is too old")).advise(update),
        (None, Some(_), _) => Finding::note(format!(
            "{found} is newer than the versions that this release was tested with (up to {NEWEST})"
        ))
        .advise("Check for a newer release of pg-limiter."),
        (Some(release), Some(year), Some(half)) if (year, half) < OLDEST_YUGABYTE => {
            Finding::problem(format!("YugabyteDB {release} is too old")).advise("Update to YugabyteDB 2024.2 or later.")
        }
        (Some(release), Some(_), Some(_)) => {
            Finding::note(format!("YugabyteDB {release}: pg-limiter is designed for it, but has not been run on it"))
        }
        _ => Finding::problem(format!("{}: not supported", other.map_or_else(|| shown(text, 80), str::to_owned)))
            .advise("Use PostgreSQL or YugabyteDB: the functions are written in PL/pgSQL and rely on their row locks."),
    };
    (finding, release.is_some())
}

const SERIALIZABLE: &str = "serializable";
const READ_COMMITTED: &str = "read committed";

pub(super) async fn isolation(session: &mut Session) -> sqlx::Result<Finding> {
    // The setting of YugabyteDB may name another level than the one in force.
    let sql = match session.is_yugabyte {
        true => "SELECT yb_get_effective_transaction_isolation_level()::text",
        false => "SELECT current_setting('transaction_isolation')",
    };
    let (serializable,): (String,) = first(session.rows_at(SERIALIZABLE, sql).await?)?;
    let (read_committed,): (String,) = first(session.rows_at(READ_COMMITTED, sql).await?)?;
    Ok(judge_levels(&serializable.to_lowercase(), &read_committed.to_lowercase()))
}

fn judge_levels(serializable: &str, read_committed: &str) -> Finding {
    match (serializable, read_committed) {
        (SERIALIZABLE, READ_COMMITTED) => Finding::ok("SERIALIZABLE and READ COMMITTED are in force when requested"),
        (SERIALIZABLE, _) => {
            Finding::warning(format!("SERIALIZABLE is in force, but READ COMMITTED is {read_committed} here"))
                .advise("Use Isolation::Serializable, or set the tserver flag yb_enable_read_committed_isolation=true:")
                .advise("without it, READ COMMITTED transactions that need the same row fail instead of waiting.")
        }
        _ => Finding::problem(format!("SERIALIZABLE transactions run as {serializable} here"))
            .advise("Configure the server, or the pooler in front of it, to keep the isolation level of BEGIN."),
    }
}

const READINGS: usize = 5;
const TOO_FAR: f64 = 1.0;

pub(super) async fn clock(session: &mut Session) -> sqlx::Result<Finding> {
    let mut readings = Vec::with_capacity(READINGS);
    for _ in 0..READINGS {
        let ours = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs_f64();
        let begun = Instant::now();
        let (theirs,) = session.row("SELECT date_part('epoch', clock_timestamp())").await?;
        readings.push((theirs, ours, begun.elapsed()));
    }
    Ok(judge_clock(&readings))
}

/// `readings`: both clocks, theirs and ours, in seconds since the Unix epoch, and the time that it took to read them.
fn judge_clock(readings: &[(f64, f64, Duration)]) -> Finding {
    if readings.windows(2).any(|pair| pair[1].0 <= pair[0].0) {
        return Finding::problem("the database's clock does not advance")
            .advise("Check the clock of its machine: while it stands still or runs backwards, no tokens refill.");
    }
    let Some((theirs, ours, round_trip)) = readings.iter().min_by_key(|(.., round_trip)| *round_trip) else {
        return Finding::note("not checked");
    };
    let doubt = round_trip.as_secs_f64() / 2.0;
    // If both directions took the same time.
    let ahead = theirs - ours - doubt;
    let way = if ahead < 0.0 { "behind" } else { "ahead of" };
    let found = format!("the database's clock is {:.3} s {way} this machine's (to within {doubt:.3} s)", ahead.abs());
    Finding::warning(found)
        .advise("Only the database's clock counts, and waits are returned as durations, so limits are still exact. But check")
        .advise("which clock is wrong: the `start` of windows and the `run_at` of jobs refer to the database's clock.")
        .ok_if(ahead.abs() - doubt <= TOO_FAR)
}

const SEQUENCE: &str = "_test_clock";

/// Checks for a test clock, which `TestClock` of the library's feature `testing` installs. Returns `None` if there is none.
pub(super) async fn test_clock(session: &mut Session) -> sqlx::Result<Option<Finding>> {
    let (functions, sequence) = (&session.functions, session.table(SEQUENCE));
    let sql = format!("SELECT count(*) FROM {functions} WHERE p.proname = '_clock' AND p.prosrc LIKE '%{SEQUENCE}%'");
    if session.row::<(i64,)>(&sql).await? == (0,) {
        return Ok(None);
    }
    let (ahead,): (i64,) = session.row(&format!("SELECT last_value FROM {sequence}")).await?;
    let hours = Duration::from_micros(ahead.unsigned_abs()).as_secs_f64() / 3600.0;
    Ok(Some(Finding::problem(format!("a test clock is installed, {hours:.1} h ahead of the server's time"))
        .advise("All limits and queues of the schema follow it. Run pg-limiter migrate, which removes it. Buckets that were used")
        .advise("stay ahead of the server's time; reset their keys. Turn the feature `testing` on only in dev-dependencies.")))
}

const VERIFY: &str = "Add sslmode=verify-full&sslrootcert=FILE to the URL, with the certificate of the server's CA.";

pub(super) async fn encryption(session: &mut Session) -> sqlx::Result<Finding> {
    let sql = "SELECT concat_ws(', ', s.version, s.cipher) \
               FROM pg_stat_ssl AS s WHERE s.pid = pg_backend_pid() AND s.ssl";
    let encrypted = session.rows::<(String,)>(sql).await?.pop().map(|(how,)| how);
    let options = &session.options;
    let is_local = options.get_socket().is_some() || is_local(options.get_host());
    let is_verified = matches!(options.get_ssl_mode(), PgSslMode::VerifyCa | PgSslMode::VerifyFull);
    Ok(judge_encryption(encrypted, is_local, is_verified))
}

fn judge_encryption(encrypted: Option<String>, is_local: bool, is_verified: bool) -> Finding {
    match encrypted {
        Some(how) if is_verified => Finding::ok(format!("{how}; the server's certificate is checked")),
        Some(how) if is_local => Finding::ok(format!("{how}; the server is on this machine")),
        Some(how) => Finding::note(format!("{how}; the server's certificate is not checked"))
            .advise("Another server could impersonate it and read passwords.")
            .advise(VERIFY),
        None if is_local => Finding::ok("not encrypted; the server is on this machine"),
        None => Finding::note("not encrypted on the last hop to the server")
            .advise("Keys and balances can be read on the network. If the server supports TLS, use it.")
            .advise(VERIFY),
    }
}

/// Decides by the name of the host. It cannot see the rest of the path behind a local tunnel or pooler.
fn is_local(host: &str) -> bool {
    host == "localhost" || host.starts_with('/') || host.parse().is_ok_and(|address: IpAddr| address.is_loopback())
}

const ROUNDS: usize = 4;

/// Identifies the server process behind a connection. With its start time, because a new process may get the same pid.
const BACKEND: &str = "SELECT concat_ws(' ', a.pid, date_part('epoch', a.backend_start)) \
                       FROM pg_catalog.pg_stat_activity AS a WHERE a.pid = pg_catalog.pg_backend_pid()";

/// Uses two connections at once: behind a pooler in transaction mode, one server process serves both.
pub(super) async fn pooler(session: &mut Session) -> sqlx::Result<Finding> {
    let mut second = match connect_with(&session.options).await {
        Ok(second) => second,
        Err(error) => {
            let found = format!("not checked: cannot open a second connection: {}", Error::database_message(&error));
            return Ok(Finding::note(found)
                .advise("The limiter needs a connection for each lane, in addition to those of your pool."));
        }
    };
    let (mut firsts, mut seconds) = (BTreeSet::new(), BTreeSet::new());
    for _ in 0..ROUNDS {
        // Twice, because a pooler may use its processes in turn.
        for _ in 0..2 {
            firsts.insert(first::<(String,)>(ask(&mut session.connection, PLAIN, BACKEND).await?)?);
        }
        seconds.insert(first(ask(&mut second, PLAIN, BACKEND).await?)?);
    }
    let _ = second.close().await;
    if firsts.len() == 1 && seconds.len() == 1 && firsts != seconds {
        return Ok(Finding::ok("none in transaction mode: each connection has its own server process"));
    }
    Ok(Finding::note("a pooler in transaction mode: connections share server processes")
        .advise("Set LimiterConfig::named_statements to false. If it is pgbouncer 1.21 or newer with max_prepared_statements")
        .advise("above 0, set LimiterConfig::connections to Connections::Pool instead. (Guide: poolers.)"))
}

pub(super) async fn startup_settings(session: &Session) -> sqlx::Result<Finding> {
    if let Some(message) = &session.refused {
        return Ok(Finding::problem(format!("a pooler refuses the start-up settings of sqlx: {message}"))
            .advise("Add extra_float_digits to ignore_startup_parameters in pgbouncer.ini, or connect with")
            .advise("PgConnectOptions::extra_float_digits(None)."));
    }
    let over_pool =
        "Set LimiterConfig::connections to Connections::Pool: the limiter's own connections need start-up settings.";
    let options = session.options.clone().options([("pg_limiter.doctor", "1")]);
    let mut connection = match connect_with(&options).await {
        Ok(connection) => connection,
        Err(error) => {
            let message = Error::database_message(&error);
            return Ok(match Error::refuses_settings(&error) {
                true => Finding::note(format!("a pooler refuses them: {message}")).advise(over_pool),
                false => Finding::note(format!("not checked: cannot open a connection: {message}")),
            });
        }
    };
    let value = ask(&mut connection, PLAIN, "SELECT current_setting('pg_limiter.doctor', true)").await;
    let _ = connection.close().await;
    let (value,): (Option<String>,) = first(value?)?;
    Ok(match value.as_deref() {
        Some("1") => Finding::ok("they arrive: the limiter's own connections have their isolation level and time-out"),
        _ => Finding::warning("a pooler silently ignores them").advise(over_pool),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::operate::doctor::State;

    #[test]
    fn an_engine_is_recognized_by_its_version() {
        for (text, state, found) in [
            ("PostgreSQL 15.18 (Debian 15.18-0+deb12u1) on x86_64", State::Ok, "PostgreSQL 15.18"),
            ("PostgreSQL 18.4 on x86_64-pc-linux-gnu", State::Ok, "PostgreSQL 18.4"),
            ("PostgreSQL 13.23, compiled by Visual C++", State::Ok, "PostgreSQL 13.23"),
            ("PostgreSQL 12.22 on x86_64", State::Warning, "not supported"),
            ("PostgreSQL 11.22 on x86_64", State::Warning, "not supported"),
            ("PostgreSQL 9.6.24 on x86_64", State::Problem, "too old"),
            ("PostgreSQL 19beta1 on x86_64", State::Note, "newer"),
            ("PostgreSQL 15.12-YB-2025.2.0.0-b131 on x86_64", State::Note, "YugabyteDB 2025.2.0.0-b131: "),
            ("PostgreSQL 11.2-YB-2024.2.2.0-b0 on x86_64", State::Note, "designed for it"),
            ("PostgreSQL 11.2-YB-2024.1.0.0-b1 on x86_64", State::Problem, "too old"),
            ("PostgreSQL 11.2-YB-2.20.1.0-b97 on x86_64", State::Problem, "too old"),
            ("CockroachDB CCL v24.1.0 (x86_64-pc-linux-gnu)", State::Problem, "CockroachDB: not supported"),
            ("PostgreSQL 8.0.2 on i686, compiled by GCC, Redshift 1.0.12103", State::Problem, "Redshift"),
            ("something else", State::Problem, "something else: not supported"),
        ] {
            let finding = judge_engine(text).0;
            assert_eq!(finding.state, state, "{text}");
            assert!(finding.found.contains(found), "{}", finding.found);
        }
    }

    #[test]
    fn a_substituted_isolation_level_is_reported() {
        let levels =
            [(SERIALIZABLE, READ_COMMITTED), (SERIALIZABLE, "repeatable read"), ("repeatable read", READ_COMMITTED)];
        let states = levels.map(|(serializable, read_committed)| judge_levels(serializable, read_committed).state);
        assert_eq!(states, [State::Ok, State::Warning, State::Problem]);
    }

    #[test]
    fn half_the_round_trip_is_subtracted() {
        let milliseconds = Duration::from_millis;
        let found = judge_clock(&[(100.25, 100.0, milliseconds(500)), (101.1, 101.0, milliseconds(100))]);
        assert_eq!(found.state, State::Ok);
        assert_eq!(found.found, "the database's clock is 0.050 s ahead of this machine's (to within 0.050 s)");
        // Half of a slow round trip may be the whole difference.
        assert_eq!(judge_clock(&[(98.5, 100.0, milliseconds(4000))]).state, State::Warning);
        assert_eq!(judge_clock(&[(101.5, 100.0, milliseconds(4000))]).state, State::Ok);
    }

    #[test]
    fn unencrypted_or_unverified_remote_connections_are_noted() {
        for (encrypted, host, is_verified, state) in [
            (true, "db.example.com", true, State::Ok),
            (true, "db.example.com", false, State::Note),
            (false, "db.example.com", false, State::Note),
            (false, "10.0.0.1", false, State::Note),
            (false, "127.0.0.1", false, State::Ok),
            (false, "localhost", false, State::Ok),
            (false, "/run/postgresql", false, State::Ok),
            (true, "::1", false, State::Ok),
        ] {
            let how = encrypted.then(|| "TLSv1.3".to_owned());
            assert_eq!(judge_encryption(how, is_local(host), is_verified).state, state, "{host}");
        }
    }
}
