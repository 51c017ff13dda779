//! Why a migration failed, before the error names the schema.

use crate::error::{MigrationCause, classify_migration};
use crate::migrate::installed::Misowned;

pub(super) enum Failure {
    TooNew(i32),
    Occupied(String),
    Misowned(Misowned),
    NotOwner(String),
    Lacking { role: String, privilege: String, what: String, granted_by: String },
    Untrusted(Vec<String>),
    Driver(sqlx::Error),
}

impl Failure {
    pub(super) fn cause(&self) -> MigrationCause {
        match self {
            Self::Driver(error) => classify_migration(error),
            Self::TooNew(_)
            | Self::Occupied(_)
            | Self::Misowned(_)
            | Self::NotOwner(_)
            | Self::Lacking { .. }
            | Self::Untrusted(_) => MigrationCause::Refused,
        }
    }
}

impl From<sqlx::Error> for Failure {
    fn from(error: sqlx::Error) -> Self {
        Self::Driver(error)
    }
}
