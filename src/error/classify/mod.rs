//! What a failure means: the one place that looks at SQLSTATEs.

mod classify;
mod migration;
mod table;

pub(crate) use classify::{
    Cause, Phase, SettingsIgnored, classify, is_in_failed_transaction, refuses_settings, transient_in_chain,
};
pub(crate) use migration::{MigrationCause, classify_migration};
