//! Where the server comes from: programs that are installed or downloaded, or a container.

use super::{Server, ServerConfig, ServerError};

impl Server {
    /// Starts a server and waits until it accepts connections. Blocks; from async code, use `spawn_blocking`.
    ///
    /// # Errors
    /// If no server programs and no container are available, or the server does not start.
    pub fn start(config: &ServerConfig) -> Result<Self, ServerError> {
        let mut tried = Vec::new();
        if config.container {
            tried.push("server programs: a container was requested (ServerConfig::container)".to_owned());
        }
        #[cfg(unix)]
        if !config.container
            && let Some(server) = super::process::start(config, &mut tried)?
        {
            return Ok(server);
        }
        #[cfg(not(unix))]
        tried.push("server programs: supported on Unix only".to_owned());
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
}
