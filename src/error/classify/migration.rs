/// What a failure of a migration means: another one migrates, too, and objects come into being beside ours.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum MigrationCause {
    /// Another migrator was there first, or is at it: try again.
    Clash,
    /// The engine has no advisory locks: not implemented, or no such function.
    NoAdvisoryLocks,
    /// Transactions cannot write here.
    ReadOnly,
    /// A privilege is missing.
    Privilege,
    /// Anything else.
    Refused,
}

const TABLE: [(&str, MigrationCause); 14] = [
    ("23505", MigrationCause::Clash),           // unique_violation, also of a catalog
    ("42P06", MigrationCause::Clash),           // duplicate_schema
    ("42P07", MigrationCause::Clash),           // duplicate_table
    ("42710", MigrationCause::Clash),           // duplicate_object
    ("42723", MigrationCause::Clash),           // duplicate_function
    ("40001", MigrationCause::Clash),           // serialization_failure
    ("40P01", MigrationCause::Clash),           // deadlock_detected
    ("55P03", MigrationCause::Clash),           // lock_not_available
    ("XX000", MigrationCause::Clash),           // internal_error: "tuple concurrently updated"
    ("YB", MigrationCause::Clash),              // YugabyteDB's own
    ("0A000", MigrationCause::NoAdvisoryLocks), // feature_not_supported
    ("42883", MigrationCause::NoAdvisoryLocks), // undefined_function
    ("25006", MigrationCause::ReadOnly),        // read_only_sql_transaction
    ("42501", MigrationCause::Privilege),       // insufficient_privilege
];

/// Looks a failure of a migration up.
pub(crate) fn classify_migration(error: &sqlx::Error) -> MigrationCause {
    let code = super::classify::sqlstate(error);
    let row = TABLE.iter().find(|(listed, _)| code.starts_with(listed));
    row.map_or(MigrationCause::Refused, |(_, cause)| *cause)
}
