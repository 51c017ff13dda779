/// The cause of a failed migration. Other processes may migrate or create objects at the same time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum MigrationCause {
    /// Another process has migrated the schema first, or is migrating it now. Retry.
    Clash,
    /// The engine has no advisory locks: they are not implemented, or the function does not exist.
    NoAdvisoryLocks,
    /// Transactions are read-only.
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
    ("YB", MigrationCause::Clash),              // YugabyteDB's own codes
    ("0A000", MigrationCause::NoAdvisoryLocks), // feature_not_supported
    ("42883", MigrationCause::NoAdvisoryLocks), // undefined_function
    ("25006", MigrationCause::ReadOnly),        // read_only_sql_transaction
    ("42501", MigrationCause::Privilege),       // insufficient_privilege
];

/// Looks up the cause of a failed migration.
pub(crate) fn classify_migration(error: &sqlx::Error) -> MigrationCause {
    let code = super::classify::sqlstate(error);
    let row = TABLE.iter().find(|(listed, _)| code.starts_with(listed));
    row.map_or(MigrationCause::Refused, |(_, cause)| *cause)
}
