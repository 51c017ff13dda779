//! Errors of databases and poolers: PostgreSQL, YugabyteDB from 2.x to 2025.2, CockroachDB, pgbouncer.

/// An ErrorResponse. Empty fields are left out.
#[derive(Debug)]
pub struct Payload {
    /// For tests and their messages.
    pub name: &'static str,
    pub severity: &'static str,
    pub code: &'static str,
    pub message: &'static str,
    pub detail: &'static str,
    /// The CONTEXT of a message, field W.
    pub context: &'static str,
    /// The server function that reports the error, field R.
    pub routine: &'static str,
}

impl Payload {
    pub fn is_fatal(&self) -> bool {
        self.severity == "FATAL"
    }
}

/// The payload with this name.
pub fn payload(name: &str) -> &'static Payload {
    PAYLOADS.iter().find(|payload| payload.name == name).unwrap_or_else(|| panic!("there is no payload \"{name}\""))
}

const fn error(name: &'static str, code: &'static str, message: &'static str) -> Payload {
    Payload { name, severity: "ERROR", code, message, detail: "", context: "", routine: "" }
}

const fn fatal(name: &'static str, code: &'static str, message: &'static str) -> Payload {
    Payload { severity: "FATAL", ..error(name, code, message) }
}

const KILLED: &str = "terminating connection due to administrator command";
const CRASHED: &str = "terminating connection because of crash of another server process";
const STARTING: &str = "the database system is starting up";
const FULL: &str = "sorry, too many clients already";
const STANDBY: &str = "kann serialisierbaren Modus nicht in einem Hot Standby verwenden";
const MISMATCH: &str = "schema version mismatch for table 000034e100003000800000000000400f: expected 1, got 0";
const TIMED_OUT: &str = "Timed out: Perform RPC timed out after deadline expired";
const CONFLICT: &str =
    "could not serialize access due to concurrent update (yb_max_query_layer_retries set to 60 are exhausted)";
const CONFLICT_DETAIL: &str = "6f2c9d5e-8d43-4a3c-9d51-0c6f0f6f6f01 conflicts with concurrently committed data. Value write after \
    transaction start: doc ht ({ physical: 1 }) > read time ({ physical: 0 }): kConflict [serializable]";

/// Named after the error that they report; the numbers are those of the study.
pub const PAYLOADS: &[Payload] = &[
    // 1
    Payload { detail: CONFLICT_DETAIL, ..error("conflict", "40001", CONFLICT) },
    // 2
    error(
        "old conflict",
        "40001",
        "All transparent retries exhausted. Operation failed. Try again: 6f2c9d5e-8d43-4a3c-9d51-0c6f0f6f6f01 Conflicts \
         with higher priority transaction: 0e2c9d5e-8d43-4a3c-9d51-0c6f0f6f6f02",
    ),
    // 3
    Payload {
        detail: "Transaction 6f2c9d5e-8d43-4a3c-9d51-0c6f0f6f6f01 expired or aborted by a conflict",
        ..error("expired", "40001", "current transaction is expired or aborted")
    },
    // 4
    error(
        "expired heartbeat",
        "40001",
        "Operation expired: Heartbeat: Transaction 6f2c9d5e-8d43-4a3c-9d51-0c6f0f6f6f01 expired or aborted by a conflict: \
         40001",
    ),
    // 5
    error("aborted", "40001", "Operation expired: Transaction aborted: kAborted"),
    // 6
    error("expired commit", "40001", "Commit of expired transaction"),
    // 7
    error("read restart", "40001", "Restart read required"),
    error(
        "old read restart",
        "40001",
        "Query error: Restart read required at: { read: { physical: 1 } local_limit: { physical: 2 } }",
    ),
    // 8
    Payload { detail: CONFLICT_DETAIL, ..error("leaked conflict", "YB003", CONFLICT) },
    // 9
    Payload {
        detail: "Process 7 waits for ShareLock on transaction 733; blocked by process 8.",
        ..error("deadlock", "40P01", "deadlock detected")
    },
    // 10
    error(
        "old deadlock",
        "XX000",
        "Internal error: Transaction 6f2c9d5e-8d43-4a3c-9d51-0c6f0f6f6f01 was aborted while waiting for locks",
    ),
    // 11
    error("schema version", "40001", MISMATCH),
    error("old schema version", "XX000", MISMATCH),
    // 12
    Payload {
        context: "Catalog Version Mismatch: A DDL occurred while processing this query. Try again.",
        ..error(
            "catalog version",
            "XX000",
            "The catalog snapshot used for this transaction has been invalidated: expected: 2, got: 1",
        )
    },
    // 13
    error("timed out", "XX000", TIMED_OUT),
    // Other texts with the same SQLSTATE.
    error("network error", "XX000", "Network error: recvmsg error: Connection refused (system error 111)"),
    error("no leader", "XX000", "Service unavailable: Leader does not have a valid lease. Not the leader"),
    // An internal error that is not a conflict.
    error("internal", "XX000", "cache lookup failed for function 12345"),
    // 14
    error("snapshot too old", "72000", "Snapshot too old"),
    // 15
    fatal("killed", "57P01", KILLED),
    fatal("crashed", "57P02", CRASHED),
    fatal("starting up", "57P03", STARTING),
    fatal("full", "53300", FULL),
    fatal("unknown session", "08003", "Unknown session"),
    fatal("connection failure", "08006", "server closed the connection unexpectedly"),
    // 17
    error("read only", "25006", "cannot execute INSERT in a read-only transaction"),
    // A SERIALIZABLE transaction on a standby: when it begins, and when it takes its snapshot. With lc_messages = de_DE.
    error("serializable on a standby", "0A000", STANDBY),
    Payload {
        routine: "GetSerializableTransactionSnapshot",
        ..error("serializable snapshot on a standby", "0A000", STANDBY)
    },
    // With lc_messages = de_DE.
    Payload {
        routine: "ProcessRecoveryConflictInterrupt",
        ..error("recovery conflict", "40001", "storniere Anfrage wegen Konflikt mit der Wiederherstellung")
    },
    // 18
    error("duplicate", "23505", "duplicate key value violates unique constraint \"rate_limits_pkey\""),
    // 19
    error("no advisory locks", "0A000", "advisory locks are not yet implemented"),
    // 20
    error("ambiguous", "40003", "result is ambiguous: error=rpc error: code = Unavailable desc = transport is closing"),
    error(
        "cockroach",
        "40001",
        "restart transaction: TransactionRetryWithProtoRefreshError: WriteTooOldError: write for key /Table/52 at \
         timestamp 1.0 too old",
    ),
    error("resolution unknown", "08007", "transaction resolution unknown"),
    // 22
    error("prepared twice", "42P05", "prepared statement \"sqlx_s_1\" already exists"),
    error("not prepared", "26000", "prepared statement \"sqlx_s_1\" does not exist"),
    error("no portal", "34000", "portal \"\" does not exist"),
    // PostgreSQL's own message, verbatim.
    Payload {
        detail: "Reason code: Canceled on identification as a pivot, during commit attempt.",
        ..error("pivot", "40001", "could not serialize access due to read/write dependencies among transactions")
    },
    error("division", "22012", "division by zero"),
    error("no table", "42P01", "relation \"rate_limit.rate_limits\" does not exist"),
    error("no privilege", "42501", "permission denied for table rate_limits"),
];
