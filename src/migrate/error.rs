use crate::error::database_message;
use crate::migrate::script::WAYS_OUT;

/// The reason why a migration failed. Its transaction is rolled back, and all locks are released.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum MigrateError {
    /// A newer release has migrated the schema, and this release cannot work with the result.
    #[error(
        "the schema \"{schema}\" is at version {found}, which this release cannot work with: it knows versions up to {known}; \
         update pg-limiter"
    )]
    SchemaTooNew {
        /// The schema.
        schema: String,
        /// The newest version found in the database that is marked as breaking.
        found: i32,
        /// The newest version that this release knows.
        known: i32,
    },
    /// Another process is migrating, and did not finish in time.
    #[error("another process is migrating the schema \"{schema}\": {}; retry when it is done", database_message(.source))]
    Busy {
        /// The schema.
        schema: String,
        /// The driver's error.
        source: sqlx::Error,
    },
    /// A privilege is missing: CREATE on the schema, or on the database if the schema does not exist yet.
    #[error(
        "cannot migrate the schema \"{schema}\": {}; the role needs CREATE on the schema, and on the database if the schema does not exist",
        database_message(.source)
    )]
    Privilege {
        /// The schema.
        schema: String,
        /// The driver's error.
        source: sqlx::Error,
    },
    /// The schema already has a relation with the name of one of the limiter's tables.
    #[error(
        "the schema \"{schema}\" already has a relation \"{table}\" that is not the rate limiter's; choose another schema"
    )]
    Occupied {
        /// The schema.
        schema: String,
        /// The name of the relation.
        table: String,
    },
    /// The schema is not safe: another role can create objects in it, or owns or has changed an object with one of the limiter's
    /// names. Code of that role could run as the role that migrates.
    #[error("the schema \"{schema}\" is not safe: {}; {WAYS_OUT}", few(.problems))]
    Untrusted {
        /// The schema.
        schema: String,
        /// The problems, one sentence each.
        problems: Vec<String>,
    },
    /// Transactions are read-only, because the server is a standby or because of its settings.
    #[error(
        "cannot migrate the schema \"{schema}\": {}; connect to the primary, with default_transaction_read_only = off",
        database_message(.source)
    )]
    ReadOnly {
        /// The schema.
        schema: String,
        /// The driver's error.
        source: sqlx::Error,
    },
    /// The database reported any other error.
    #[error(
        "cannot migrate the schema \"{schema}\": {}; correct the cause and migrate again",
        database_message(.source)
    )]
    Database {
        /// The schema.
        schema: String,
        /// The driver's error.
        source: sqlx::Error,
    },
}

/// The first few problems, and the number of the others.
fn few(problems: &[String]) -> String {
    const FEW: usize = 4;
    let listed = problems.iter().take(FEW).map(String::as_str).collect::<Vec<_>>().join("; ");
    match problems.len().saturating_sub(FEW) {
        0 => listed,
        more => format!("{listed}; and {more} more"),
    }
}
