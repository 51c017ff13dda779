//! Checks whether the requested isolation level is in force.

use crate::doctor::finding::Finding;
use crate::doctor::session::Session;

const SERIALIZABLE: &str = "serializable";
const READ_COMMITTED: &str = "read committed";

pub(super) async fn check(session: &mut Session, yugabyte: bool) -> Result<Finding, sqlx::Error> {
    let serializable = in_force(session, SERIALIZABLE, yugabyte).await?;
    let read_committed = in_force(session, READ_COMMITTED, yugabyte).await?;
    Ok(judge(&serializable, &read_committed))
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

fn judge(serializable: &str, read_committed: &str) -> Finding {
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
    use crate::doctor::finding::State;

    #[test]
    fn a_substituted_isolation_level_is_reported() {
        assert_eq!(judge(SERIALIZABLE, READ_COMMITTED).state, State::Ok);
        let snapshot = judge(SERIALIZABLE, "repeatable read");
        assert_eq!(snapshot.state, State::Warning);
        assert!(snapshot.found.contains("READ COMMITTED is repeatable read"), "{}", snapshot.found);
        assert!(snapshot.advice[0].contains("yb_enable_read_committed_isolation=true"), "{:?}", snapshot.advice);
        assert_eq!(judge("repeatable read", READ_COMMITTED).state, State::Problem);
    }
}
