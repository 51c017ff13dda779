//! The table of failures. A row is selected by SQLSTATE, engine and, where the SQLSTATE is a catch-all, words in the
//! message. It gives the cause for each phase of a transaction.
//!
//! Words are matched on YugabyteDB and Citus only, which do not translate their own messages. PostgreSQL translates its messages
//! into the language of `lc_messages`. There the SQLSTATE decides, and in one case the name of the server's function.
//!
//! Sources: PostgreSQL's documentation, Appendix A and section 13.5 (Serialization Failure Handling); YugabyteDB's
//! documentation, "Transaction retries in YSQL", and its source: `ybc_util.cc`, `pg_yb_utils.c`, and `client/transaction.cc`
//! for a COMMIT that reports "expired" although it succeeded; Citus' source: `remote_commands.c`, `remote_transaction.c`,
//! `adaptive_executor.c`. The words differ between releases, and other text may follow
//! them, so they are searched for anywhere in the message, the detail and the context.

use super::cause::Cause::{
    self, Busy, Closed, Conflict, Connection, Data, Locked, Pooler, Refused, SchemaMissing, Settings, Unknown,
};
use super::reported::{ReadOnlyByDefault, SettingsIgnored};
use crate::error::Engine;

/// One kind of failure and its causes.
#[derive(Debug)]
pub(super) struct Row {
    /// The SQLSTATE or its beginning; empty for any.
    pub(super) state: &'static str,
    /// The engine to which the row applies; `None` for all.
    pub(super) engine: Option<Engine>,
    /// The error must contain one of these words, in its texts or in the name of the server's function. Empty for any.
    pub(super) words: &'static [&'static str],
    /// The cause while connecting, and in BEGIN.
    pub(super) connect: Cause,
    /// The cause in a statement, before COMMIT is sent.
    pub(super) statement: Cause,
    /// The cause after COMMIT is sent.
    pub(super) commit: Cause,
}

const fn on(
    engine: Option<Engine>,
    state: &'static str,
    words: &'static [&'static str],
    [connect, statement, commit]: [Cause; 3],
) -> Row {
    Row { state, engine, words, connect, statement, commit }
}

/// A row for all engines.
const fn any(state: &'static str, causes: [Cause; 3]) -> Row {
    on(None, state, &[], causes)
}

/// A row for YugabyteDB, and for an engine that is not known yet.
const fn yb(state: &'static str, words: &'static [&'static str], causes: [Cause; 3]) -> Row {
    on(Some(Engine::Yugabyte), state, words, causes)
}

/// A row for Citus, and for an engine that is not known yet.
const fn citus(state: &'static str, words: &'static [&'static str], causes: [Cause; 3]) -> Row {
    on(Some(Engine::Citus), state, words, causes)
}

/// The transaction was aborted, or its record is gone. The record of a committed transaction is also gone.
const GONE: &[&str] = &["expired", "aborted", "kAborted", "Unknown transaction", "Transaction metadata missing"];

/// Conflicts that are found before anything is committed.
const CONFLICTS: &[&str] = &[
    "could not serialize access",
    "onflicts with",
    "Restart read required",
    "Value write after transaction start",
    "restart transaction",
];

/// Part of the cluster was unavailable or slow, or the schema has just changed.
const PASSING: &[&str] = &[
    "Timed out",
    "timed out after deadline",
    "Network error",
    "Service unavailable",
    "Not the leader",
    "valid lease",
    "Try again",
    "schema version mismatch",
    "was aborted while waiting for locks",
    "atalog version",
    "atalog snapshot",
    "Soft memory limit exceeded",
    "Object Lock Manager Shutdown",
];

/// A node could not be reached, so the statement did not reach it.
const NOT_SENT: &[&str] = &["Connection refused", "could not establish any connections", "the database system is"];

/// The connection to a node was lost within a transaction of several statements.
const NODE_LOST: &[&str] = &["failure on connection", "failed to prepare transaction"];

/// A standby cannot provide a SERIALIZABLE snapshot. This function of PostgreSQL reports it.
const STANDBY: &[&str] = &["GetSerializableTransactionSnapshot"];

/// The queue of notifications is full. The next attempt sends none. This function of PostgreSQL reports it.
const NOTIFY_FULL: &[&str] = &["PreCommit_Notify"];

/// The first row that matches applies.
#[rustfmt::skip]
pub(super) const TABLE: &[Row] = &[
    //                                                       connect     statement      commit
    yb("", &["Catalog Version Mismatch"],                   [Connection, Conflict,      Unknown]),
    yb("40001", GONE,                                       [Connection, Conflict,      Unknown]),
    yb("40001", CONFLICTS,                                  [Connection, Conflict,      Conflict]),
    yb("YB", &[],                                           [Connection, Conflict,      Unknown]),  // its internal codes
    yb("XX000", PASSING,                                    [Connection, Conflict,      Unknown]),  // internal_error, a catch-all
    on(Some(Engine::Yugabyte), "XX000", &[],                [Connection, Refused,       Unknown]),
    on(Some(Engine::Yugabyte), "40001", &[],                [Connection, Conflict,      Unknown]),
    citus("08006", NOT_SENT,                                [Connection, Connection,    Connection]), // connection_failure, to a node
    citus("XX000", NODE_LOST,                               [Connection, Conflict,      Unknown]),
    citus("XX000", &[],                                     [Connection, Refused,       Unknown]),
    any("40001",                                            [Connection, Conflict,      Conflict]), // serialization_failure
    any("40P01",                                            [Connection, Conflict,      Conflict]), // deadlock_detected
    any("72000",                                            [Connection, Conflict,      Conflict]), // snapshot_too_old
    any("55P03",                                            [Connection, Locked,        Conflict]), // lock_not_available
    any("40003",                                            [Connection, Unknown,       Unknown]),  // statement_completion_unknown
    any("08007",                                            [Connection, Unknown,       Unknown]),  // transaction_resolution_unknown
    any("08P01",                                            [Settings,   Connection,    Unknown]),  // protocol_violation: how poolers reject settings
    any("08",                                               [Connection, Connection,    Unknown]),  // connection exceptions
    any("57P01",                                            [Connection, Connection,    Unknown]),  // admin_shutdown
    any("57P02",                                            [Connection, Connection,    Unknown]),  // crash_shutdown
    any("57P03",                                            [Connection, Connection,    Unknown]),  // cannot_connect_now
    any("57P05",                                            [Connection, Connection,    Unknown]),  // idle_session_timeout
    any("25P03",                                            [Connection, Connection,    Connection]), // idle_in_transaction_session_timeout: no COMMIT had come
    any("25P04",                                            [Connection, Connection,    Unknown]),  // transaction_timeout
    any("53300",                                            [Connection, Connection,    Unknown]),  // too_many_connections
    any("25006",                                            [Connection, Connection,    Refused]),  // read_only_sql_transaction: after a failover, the wrong node
    on(None, "0A000", STANDBY,                              [Connection, Connection,    Refused]),  // feature_not_supported, a catch-all: as 25006
    any("0A000",                                            [Connection, Refused,       Refused]),  // BEGIN ISOLATION LEVEL SERIALIZABLE on a standby
    on(None, "54000", NOTIFY_FULL,                          [Refused,    Conflict,      Conflict]), // program_limit_exceeded, a catch-all
    any("57014",                                            [Connection, Busy,          Busy]),     // query_canceled: statement_timeout
    any("53200",                                            [Connection, Busy,          Busy]),     // out_of_memory, also of the lock tables
    any("26000",                                            [Refused,    Pooler,        Refused]),  // invalid_sql_statement_name: prepared on another connection
    any("42P05",                                            [Refused,    Pooler,        Refused]),  // duplicate_prepared_statement: left by another client
    any("34000",                                            [Refused,    Pooler,        Refused]),  // invalid_cursor_name: a portal's
    any("42883",                                            [Refused,    SchemaMissing, Refused]),  // undefined_function
    any("42P01",                                            [Refused,    SchemaMissing, Refused]),  // undefined_table
    any("3F000",                                            [Refused,    SchemaMissing, Refused]),  // invalid_schema_name
    any("22",                                               [Refused,    Data,          Data]),     // data exceptions, invalid_parameter_value among them
    any("",                                                 [Refused,    Refused,       Refused]),  // the server reported an error: nothing was committed
];

/// The causes of an error that the driver itself reports.
pub(super) fn of_driver(error: &sqlx::Error) -> [Cause; 3] {
    match error {
        sqlx::Error::Io(_)
        | sqlx::Error::Tls(_)
        | sqlx::Error::Protocol(_)
        | sqlx::Error::PoolTimedOut
        | sqlx::Error::WorkerCrashed => [Connection, Connection, Unknown],
        sqlx::Error::BeginFailed => [Connection, Connection, Refused],
        sqlx::Error::PoolClosed => [Closed, Closed, Closed],
        sqlx::Error::Configuration(source) if source.is::<ReadOnlyByDefault>() => [Refused, Refused, Refused],
        sqlx::Error::Configuration(source) if source.is::<SettingsIgnored>() => [Settings, Refused, Refused],
        _ => [Refused, Refused, Refused],
    }
}
