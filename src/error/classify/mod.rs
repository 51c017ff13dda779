//! Classifies failures. Only this module decides anything by SQLSTATE; `error.rs` chooses the wording of its messages by it.

mod cause;
mod classify;
mod migration;
mod reported;
mod table;

pub(crate) use cause::{Cause, Phase};
pub(crate) use classify::{
    classify, is_cancelled, is_draining, is_in_failed_transaction, is_not_supported, is_read_only,
    is_recovery_conflict, is_unknown_zone, needs_another_level, read_only_in_chain, refuses_settings, sqlstate,
    transient_in_chain,
};
pub(crate) use migration::{MigrationCause, classify_migration};
pub(crate) use reported::{NoRuntime, ReadOnlyByDefault, SchemaTooNew, SettingsIgnored};
