//! Identifies the engine by its version string, and checks whether the requested isolation level is in force.

use crate::doctor::report::Finding;
use crate::doctor::session::Session;
use crate::text::shown;

/// The oldest and the newest version of PostgreSQL that the tests pass on.
const OLDEST: u32 = 13;
const NEWEST: u32 = 18;
/// The oldest version that runs the SQL. PostgreSQL itself no longer supports it.
const OLDEST_THAT_RUNS: u32 = 11;
const OLDEST_YUGABYTE: (u32, u32) = (2024, 2);
/// Other engines that speak the protocol, by a word in their version string.
const OTHERS: [&str; 8] =
    ["CockroachDB", "Redshift", "Greenplum", "Materialize", "RisingWave", "CrateDB", "QuestDB", "Spanner"];

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Engine {
    Postgres { major: u32, version: String },
    Yugabyte { release: (u32, u32), version: String },
    Other(String),
}

impl Engine {
    /// Parses the result of `version()`.
    pub(super) fn parse(text: &str) -> Self {
        let other = || Self::Other(shown(text, 80));
        if let Some(name) = OTHERS.iter().find(|name| text.contains(**name)) {
            return Self::Other((*name).to_owned());
        }
        let Some(version) = text.strip_prefix("PostgreSQL ").and_then(|rest| rest.split_whitespace().next()) else {
            return other();
        };
        if let Some(version) = pg_limiter::Engine::yugabyte_release(text) {
            let mut numbers = version.split(['.', '-']).map_while(|part| part.parse().ok());
            return match (numbers.next(), numbers.next()) {
                (Some(year), Some(half)) => Self::Yugabyte { release: (year, half), version: version.to_owned() },
                _ => other(),
            };
        }
        let digits: String = version.chars().take_while(char::is_ascii_digit).collect();
        match digits.parse() {
            Ok(major) => Self::Postgres { major, version: version.to_owned() },
            Err(_) => other(),
        }
    }

    pub(super) const fn is_yugabyte(&self) -> bool {
        matches!(self, Self::Yugabyte { .. })
    }

    pub(super) fn judge(&self) -> Finding {
        match self {
            Self::Postgres { major, version } => {
                let found = format!("PostgreSQL {version}");
                match *major {
                    OLDEST..=NEWEST => Finding::ok(found),
                    OLDEST_THAT_RUNS..OLDEST => {
                        Finding::warning(format!("{found}: the SQL runs, but this version is not supported"))
                            .advise(format!("Update to PostgreSQL {OLDEST} or later."))
                    }
                    0..OLDEST_THAT_RUNS => Finding::problem(format!("{found} is too old"))
                        .advise(format!("Update to PostgreSQL {OLDEST} or later.")),
                    _ => Finding::note(format!(
                        "{found} is newer than the versions that this release was tested with (up to {NEWEST})"
                    ))
                    .advise("Check for a newer release of pg-limiter."),
                }
            }
            Self::Yugabyte { release, version } if *release >= OLDEST_YUGABYTE => Finding::note(format!(
                "YugabyteDB {version}: pg-limiter is designed for it, but has not been run on it"
            )),
            Self::Yugabyte { version, .. } => Finding::problem(format!("YugabyteDB {version} is too old"))
                .advise("Update to YugabyteDB 2024.2 or later."),
            Self::Other(name) => Finding::problem(format!("{name}: not supported")).advise(
                "Use PostgreSQL or YugabyteDB: the functions are written in PL/pgSQL and rely on their row locks.",
            ),
        }
    }
}

pub(super) async fn engine(session: &mut Session) -> Result<Engine, sqlx::Error> {
    let rows = session.plain_rows::<(String,)>("SELECT version()").await?;
    rows.first().map(|(version,)| Engine::parse(version)).ok_or(sqlx::Error::RowNotFound)
}

const SERIALIZABLE: &str = "serializable";
const READ_COMMITTED: &str = "read committed";

pub(super) async fn isolation(session: &mut Session, yugabyte: bool) -> Result<Finding, sqlx::Error> {
    let serializable = in_force(session, SERIALIZABLE, yugabyte).await?;
    let read_committed = in_force(session, READ_COMMITTED, yugabyte).await?;
    Ok(judge_levels(&serializable, &read_committed))
}

/// The isolation level in force. The setting of YugabyteDB may name another level, so a function is queried there.
async fn in_force(session: &mut Session, level: &str, yugabyte: bool) -> Result<String, sqlx::Error> {
    let sql = if yugabyte {
        "SELECT yb_get_effective_transaction_isolation_level()::text"
    } else {
        "SELECT current_setting('transaction_isolation')"
    };
    let rows = session.rows_at::<(String,)>(level, sql).await?;
    rows.first().map(|(level,)| level.to_lowercase()).ok_or(sqlx::Error::RowNotFound)
}

fn judge_levels(serializable: &str, read_committed: &str) -> Finding {
    if serializable != SERIALIZABLE {
        return Finding::problem(format!("SERIALIZABLE transactions run as {serializable} here"))
            .advise("Configure the server, or the pooler in front of it, to keep the isolation level of BEGIN.");
    }
    if read_committed != READ_COMMITTED {
        return Finding::warning(format!("SERIALIZABLE is in force, but READ COMMITTED is {read_committed} here"))
            .advise("Use Isolation::Serializable, or set the tserver flag yb_enable_read_committed_isolation=true:")
            .advise("without it, READ COMMITTED transactions that need the same row fail instead of waiting.");
    }
    Finding::ok("SERIALIZABLE and READ COMMITTED are in force when requested")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::doctor::report::State;

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
            let finding = Engine::parse(text).judge();
            assert_eq!(finding.state, state, "{text}");
            assert!(finding.found.contains(found), "{}", finding.found);
        }
    }

    #[test]
    fn a_substituted_isolation_level_is_reported() {
        assert_eq!(judge_levels(SERIALIZABLE, READ_COMMITTED).state, State::Ok);
        let snapshot = judge_levels(SERIALIZABLE, "repeatable read");
        assert_eq!(snapshot.state, State::Warning);
        assert!(snapshot.found.contains("READ COMMITTED is repeatable read"), "{}", snapshot.found);
        assert!(snapshot.advice[0].contains("yb_enable_read_committed_isolation=true"), "{:?}", snapshot.advice);
        assert_eq!(judge_levels("repeatable read", READ_COMMITTED).state, State::Problem);
    }
}
