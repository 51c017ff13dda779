use crate::error::told;
use crate::migrate::script::WAYS_OUT;

/// Why the schema could not be brought up to date. Whatever was begun is rolled back and no lock stays behind.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum MigrateError {
    /// The database was migrated by a newer release of this crate, in a way that this release cannot work with.
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
    /// Another process migrates, and did not finish in time.
    #[error("another process is migrating the schema \"{schema}\": {}; try again when it is done", told(.source))]
    Busy {
        /// The schema.
        schema: String,
        /// What the driver says.
        source: sqlx::Error,
    },
    /// A privilege is missing: CREATE on the schema, and on the database if the schema is not there yet.
    #[error(
        "migrating the schema \"{schema}\": {}; the role needs CREATE on the schema, and on the database if the schema is not there",
        told(.source)
    )]
    Privilege {
        /// The schema.
        schema: String,
        /// What the driver says.
        source: sqlx::Error,
    },
    /// The schema already has a table of that name, which is somebody else's.
    #[error("the schema \"{schema}\" already has a \"{table}\" that is not the rate limiter's; choose another schema")]
    Occupied {
        /// The schema.
        schema: String,
        /// The name that is taken.
        table: String,
    },
    /// The schema is not safe: another role can create objects in it, or owns or has changed what has one of the limiter's names. Its
    /// code could run as the role that migrates.
    #[error("the schema \"{schema}\" is not safe: {}; {WAYS_OUT}", few(.problems))]
    Untrusted {
        /// The schema.
        schema: String,
        /// The problems, one sentence each.
        problems: Vec<String>,
    },
    /// The database refused: transactions are read-only, because the server is a standby or by its settings.
    #[error(
        "migrating the schema \"{schema}\": {}; connect to the primary, with default_transaction_read_only = off",
        told(.source)
    )]
    ReadOnly {
        /// The schema.
        schema: String,
        /// What the driver says.
        source: sqlx::Error,
    },
    /// The database refused.
    #[error("migrating the schema \"{schema}\": {}", told(.source))]
    Database {
        /// The schema.
        schema: String,
        /// What the driver says.
        source: sqlx::Error,
    },
}

/// The first of these, and how many there are besides.
fn few(problems: &[String]) -> String {
    const FEW: usize = 4;
    let listed = problems.iter().take(FEW).map(String::as_str).collect::<Vec<_>>().join("; ");
    match problems.len().saturating_sub(FEW) {
        0 => listed,
        more => format!("{listed}; and {more} more"),
    }
}
