//! Failures that this library finds itself. It reports them as the driver's error of a wrong configuration.

/// The session was opened, but ignored a setting that was requested at start-up.
#[derive(Debug, thiserror::Error)]
#[error("the session ignores the setting {0}, as behind a pooler; see LimiterConfig::named_statements")]
pub(crate) struct SettingsIgnored(pub(crate) String);

impl From<SettingsIgnored> for sqlx::Error {
    fn from(ignored: SettingsIgnored) -> Self {
        Self::Configuration(Box::new(ignored))
    }
}

/// The settings of the server, database or role make transactions read-only. A retry or another connection does not help.
#[derive(Clone, Debug, thiserror::Error)]
#[error(
    "{message}: default_transaction_read_only is on for this server, database or role; turn it off for the limiter's role \
     (ALTER ROLE app_role SET default_transaction_read_only = off), or make no calls that take tokens"
)]
pub(crate) struct ReadOnlyByDefault {
    /// The database's message.
    pub(crate) message: String,
}

impl From<ReadOnlyByDefault> for sqlx::Error {
    fn from(read_only: ReadOnlyByDefault) -> Self {
        Self::Configuration(Box::new(read_only))
    }
}

/// The caller is not within a Tokio runtime, so no task can send the call.
#[derive(Debug, thiserror::Error)]
#[error("there is no Tokio runtime to run the call on; call it from a task of a Tokio runtime")]
pub(crate) struct NoRuntime;

impl From<NoRuntime> for sqlx::Error {
    fn from(no_runtime: NoRuntime) -> Self {
        Self::Configuration(Box::new(no_runtime))
    }
}

/// A newer release has migrated the schema, and this release cannot work with the result.
#[derive(Clone, Debug, thiserror::Error)]
#[error("the schema is at version {found}, which this release cannot work with: it knows versions up to {known}")]
pub(crate) struct SchemaTooNew {
    pub(crate) found: i32,
    pub(crate) known: i32,
}

impl From<SchemaTooNew> for sqlx::Error {
    fn from(too_new: SchemaTooNew) -> Self {
        Self::Configuration(Box::new(too_new))
    }
}
