//! What can go wrong, and what to do then.

mod classify;
mod error;
mod invalid;
mod share;

pub use error::Error;
pub use invalid::{InvalidCall, InvalidLimit, LimitsFileError};

pub(crate) use error::told;

pub(crate) use classify::{
    Cause, MigrationCause, Phase, classify, classify_migration, is_in_failed_transaction, is_transient_chain,
    refuses_settings,
};
pub(crate) use share::share;
