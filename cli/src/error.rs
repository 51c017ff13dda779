use std::fmt::Display;

use pg_limiter::{Error, Schema};

pub(super) const EXIT_CODES: &str = "\
Exit codes:
  0  allowed, reserved, or done
  1  denied; --must-exist: no row was found; `migrate --check` and `limits diff`: there are differences;
     `doctor`: a warning or a problem
  2  a request that can never be allowed, a job that cannot be requeued, cancelled or discarded, or an invalid argument or file
  3  the database is unavailable or lacks the schema, or something else failed

If neither --database-url nor DATABASE_URL is set, a private PostgreSQL server is started for this run only. Every bucket in it
is full. `doctor`, `exec`, `export`, `limits`, `top` and `ui` (without --demo) require a database.";

/// The error that ends a run: a message for standard error, and its exit code.
#[derive(Debug, thiserror::Error)]
pub(super) enum CliError {
    /// An invalid argument or file, or a request that can never be allowed.
    #[error("{0}")]
    Usage(String),
    /// A failure of the database, or any other failure.
    #[error("{0}")]
    Failed(String),
    /// The reader has closed standard output, as in `pg-limiter .. | head`. The exit code is 0, and no message is printed.
    #[error("the output was closed")]
    OutputClosed,
}

pub(super) type Result<T, E = CliError> = std::result::Result<T, E>;

impl CliError {
    pub(super) fn usage(message: impl Display) -> Self {
        Self::Usage(message.to_string())
    }

    pub(super) fn failed(message: impl Display) -> Self {
        Self::Failed(message.to_string())
    }

    pub(super) fn refuse_if(is_wrong: bool, message: impl Display) -> Result<()> {
        if is_wrong { Err(Self::usage(message)) } else { Ok(()) }
    }

    /// Refuses options that do nothing without `other`. clap's `requires` lets an option pass beside one that excludes `other`.
    pub(super) fn refuse_without(other: &str, given: &str, options: &[(&str, bool)]) -> Result<()> {
        let Some((option, _)) = options.iter().find(|(_, is_given)| *is_given) else { return Ok(()) };
        Err(Self::Usage(format!("{option} applies only to {other}, not to {given}: leave it out, or use {other}")))
    }

    /// The error of a statement that reads these tables. If the role lacks a privilege, it names all that reading needs.
    pub(super) fn refused(error: Error, schema: &Schema, tables: &[&str]) -> Self {
        let source = match &error {
            Error::Database { source } if lacks_privilege(source) => source,
            _ => return error.into(),
        };
        let quoted = schema.quoted();
        let tables: Vec<String> = tables.iter().map(|table| format!("{quoted}.{table}")).collect();
        Self::failed(format!(
            "{}\nThe role needs: GRANT USAGE ON SCHEMA {quoted} TO ..; GRANT SELECT ON {} TO ..; and with --limits GRANT \
             EXECUTE ON FUNCTION {quoted}._decide TO ..;",
            Error::database_message(source),
            tables.join(", ")
        ))
    }

    /// The error of a call that takes or gives back tokens: it must not be repeated if its outcome is unknown.
    pub(super) fn of_tokens(error: Error) -> Self {
        if matches!(error, Error::OutcomeUnknown { .. }) { Self::failed(error) } else { error.into() }
    }

    pub(super) const fn exit_code(&self) -> u8 {
        match self {
            Self::OutputClosed => 0,
            Self::Usage(_) => 2,
            Self::Failed(_) => 3,
        }
    }
}

pub(super) fn lacks_privilege(error: &sqlx::Error) -> bool {
    error.as_database_error().and_then(|error| error.code()).as_deref() == Some("42501")
}

impl From<Error> for CliError {
    fn from(error: Error) -> Self {
        match error {
            Error::Invalid(_) | Error::InvalidLimit(_) | Error::InvalidJob(_) => Self::usage(error),
            Error::SchemaMissing { ref schema, .. } if schema != Schema::default().name() => {
                Self::failed(format!("{error}\n(with --schema {schema})"))
            }
            Error::OutcomeUnknown { last } => Self::failed(format!(
                "the outcome of a commit is unknown: {}; it may have taken effect: run it again",
                Error::database_message(&last)
            )),
            Error::Pooler { source } => Self::failed(format!(
                "the connection has not kept its prepared statements: {}; connect to the server, not to a pooler in \
                 transaction mode",
                Error::database_message(&source)
            )),
            _ => Self::failed(error),
        }
    }
}

impl From<sqlx::Error> for CliError {
    fn from(error: sqlx::Error) -> Self {
        Self::from(Error::from_sql(error, Schema::default().name()))
    }
}
