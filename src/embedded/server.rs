//! The public types: the server and its configuration.

use std::{
    any::Any,
    path::{Path, PathBuf},
    time::Duration,
};

/// The configuration of a [`Server`].
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct ServerConfig {
    /// The folder of `initdb` and `postgres`. Default: `None`, search for it.
    pub bin_dir: Option<PathBuf>,
    /// The version to run, such as `"18"` or `"18.4"`. Programs of other versions are skipped. Default: `None`, the first
    /// programs found, or 18.4 if they have to be downloaded.
    pub version: Option<String>,
    /// Whether missing programs may be downloaded with `npm`. Default: `true`.
    pub fetch: bool,
    /// Whether to use a container even if there are programs. This requires the crate feature `containers` and a container
    /// engine, which `DOCKER_HOST` can name. Default: `false`, a container is the last resort.
    pub container: bool,
    /// The image of the container, such as `"registry.example.com/postgres:18"`, with a server of [`Self::version`] if that
    /// is set. It must start as the official image `postgres` does. Default: `None`, the environment variable
    /// `PG_LIMITER_IMAGE`, or else `postgres:<version>-alpine`.
    pub image: Option<String>,
    /// Whether a commit waits for the disk. Default: `true`. `false` turns off `fsync`, `synchronous_commit` and
    /// `full_page_writes`. It is faster, but do not use it to measure the speed of a durable server.
    pub durable: bool,
    /// The folder in which the server makes a folder for its data, which it removes at the end. A folder in memory, such as
    /// `/dev/shm`, makes many short tests faster. The server's user must be able to write there; a server in a container ignores
    /// it. Default: `None`, the folder for temporary files.
    pub temp_dir: Option<PathBuf>,
    /// Settings of the server by name, as in `postgresql.conf`. They override those of this module. Default: none.
    pub settings: Vec<(String, String)>,
    /// The timeout for `initdb` and the start of the server together. Downloading programs or a container image does not
    /// count. Default: 30 s.
    pub startup_timeout: Duration,
}

impl Default for ServerConfig {
    fn default() -> Self {
        Self {
            bin_dir: None,
            version: None,
            fetch: true,
            container: false,
            image: None,
            durable: true,
            temp_dir: None,
            settings: Vec::new(),
            startup_timeout: Duration::from_secs(30),
        }
    }
}

#[cfg(any(unix, feature = "containers"))]
impl ServerConfig {
    /// Returns the wanted version if a server of `version` does not have it.
    pub(super) fn wanted_instead_of(&self, version: &str) -> Option<&str> {
        let wanted = self.version.as_deref()?;
        let has_it = version == wanted || version.starts_with(&format!("{wanted}."));
        if has_it { None } else { Some(wanted) }
    }

    /// All settings as `name=value`, the caller's last. If a name occurs twice, the later value applies.
    pub(super) fn all_settings(&self) -> impl Iterator<Item = String> {
        // A `TestClock` can be installed on a server of this name.
        let own: &[&str] = &["max_connections=200", "shared_buffers=128MB", "cluster_name=pg_limiter_embedded"];
        let careless: &[&str] = &["fsync=off", "synchronous_commit=off", "full_page_writes=off"];
        let careless = if self.durable { &[] } else { careless };
        own.iter()
            .chain(careless)
            .map(ToString::to_string)
            .chain(self.settings.iter().map(|(name, value)| format!("{name}={value}")))
    }
}

/// A running private PostgreSQL server. Dropping it stops the server and removes its folder, which blocks for about 0.1 s.
///
/// A `Server` in a `static` is never dropped, but is cleaned up after the process has ended, whatever the reason. (A container
/// is removed by a shell that runs `docker`, `podman` or `curl`. Without a shell or one of these commands, the container stays
/// if the process ends without dropping its `Server`. Its label `pg-limiter.owner` is the id of that process.)
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
    /// Returns the URL of a database of this server, for its superuser `postgres`. The database `postgres` always exists.
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

    /// Returns the port on the loopback address (for a container, on the host of the container engine).
    #[must_use]
    pub fn port(&self) -> u16 {
        self.port
    }

    /// Returns the data folder; `None` for a container.
    #[must_use]
    pub fn data_dir(&self) -> Option<&Path> {
        self.data_dir.as_deref()
    }

    /// Returns the version, such as `18.4`.
    #[must_use]
    pub fn version(&self) -> &str {
        &self.version
    }

    /// Returns the origin of the server, to print it: `PostgreSQL 18.4 from PATH (/usr/bin)`.
    #[must_use]
    pub fn source(&self) -> &str {
        &self.source
    }

    /// Returns the process id of the server's main process; `None` for a container.
    #[must_use]
    pub fn pid(&self) -> Option<u32> {
        self.pid
    }
}
