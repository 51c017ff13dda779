//! The errors of this crate. Each message names the cause and what to do.

mod classify;
mod clone_error;
mod denied;
mod engine;
mod error;
mod invalid_job;

pub use crate::call::InvalidCall;
pub use crate::limit::{InvalidLimit, LimitsFileError};
pub use denied::Denied;
pub use engine::Engine;
pub use error::Error;
pub use invalid_job::InvalidJob;

pub(crate) use error::{database_message, message_and_hint};

pub(crate) use classify::{
    Cause, MigrationCause, NoRuntime, Phase, ReadOnlyByDefault, SchemaTooNew, SettingsIgnored, classify,
    classify_migration, is_cancelled, is_in_failed_transaction, is_read_only, needs_another_level, read_only_in_chain,
    refuses_settings, transient_in_chain,
};
pub(crate) use clone_error::{clone_error, with_hint, without_keys};
