use std::time::Duration;

use crate::error::database_message;

/// The reason why a [`TestClock`](super::TestClock) was not installed, read, advanced or removed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TestClockError {
    /// The schema may not be a test's own.
    #[error(
        "no test clock may be installed in the schema \"{schema}\" of the database \"{database}\": neither name contains the word \
         \"test\", and the server is not an embedded one; use a database such as \"app_test\""
    )]
    NotATestSchema {
        /// The database.
        database: String,
        /// The schema.
        schema: String,
    },
    /// The schema does not contain the limiter's functions.
    #[error("the schema \"{schema}\" does not contain the limiter's functions; migrate it first")]
    SchemaMissing {
        /// The schema.
        schema: String,
    },
    /// Another role owns the limiter's functions.
    #[error(
        "the role \"{role}\" cannot install a test clock in the schema \"{schema}\": the role \"{owner}\" owns the limiter's \
         functions; connect as their owner"
    )]
    NotOwner {
        /// The schema.
        schema: String,
        /// The role of the connection.
        role: String,
        /// The owner of the functions.
        owner: String,
    },
    /// The schema has no test clock. A migration removes it.
    #[error("the schema \"{schema}\" has no test clock, or a migration has removed it; migrate first, then install it")]
    NotInstalled {
        /// The schema.
        schema: String,
    },
    /// The clock would be more than 100 years ahead.
    #[error(
        "cannot advance a test clock by {by:?}: it may be at most 100 years ahead, and is {ahead:?} ahead; advance it by less"
    )]
    TooFar {
        /// The requested advance.
        by: Duration,
        /// How far the clock is ahead.
        ahead: Duration,
    },
    /// The database reported an error.
    #[error("the test clock cannot be used: {}; correct the cause", database_message(.source))]
    Database {
        /// The driver's error.
        #[from]
        source: sqlx::Error,
    },
}
