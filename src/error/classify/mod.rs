//! Classifies failures. Only this module interprets SQLSTATEs.

mod classify;
mod migration;
mod table;

pub(crate) use classify::{
    Cause, NoRuntime, Phase, ReadOnlyByDefault, SchemaTooNew, SettingsIgnored, classify, is_in_failed_transaction,
    is_read_only, read_only_in_chain, refuses_settings, sqlstate, transient_in_chain,
};
pub(crate) use migration::{MigrationCause, classify_migration};
