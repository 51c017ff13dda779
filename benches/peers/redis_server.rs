//! A Redis server that this run starts. It ends with this process, however the process ends.

use std::net::TcpListener;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use tempfile::TempDir;

use crate::Failure;

/// Runs redis-server in a folder until standard input ends, and removes the folder.
const WATCH: &str = r#"dir=$1
shift
cd "$dir" || exit
redis-server "$@" </dev/null >/dev/null 2>&1 &
read -r _
kill $!
wait
rm -rf "$dir""#;
const TO_START: Duration = Duration::from_secs(10);

#[derive(Debug)]
pub(crate) struct RedisServer {
    port: u16,
    watcher: Child,
    /// The folder is next to PostgreSQL's, so both are on the same disk.
    _dir: TempDir,
}

impl RedisServer {
    pub(crate) fn is_installed() -> bool {
        let mut version = Command::new("redis-server");
        version.arg("--version").stdout(Stdio::null()).stderr(Stdio::null());
        version.status().is_ok_and(|status| status.success())
    }

    /// If `durable`, every write is on disk before Redis answers. Otherwise, the data is in memory only.
    pub(crate) async fn start(durable: bool) -> Result<Self, Failure> {
        let port = TcpListener::bind(("127.0.0.1", 0))?.local_addr()?.port();
        let dir = tempfile::Builder::new().prefix("pg-limiter-redis-").tempdir()?;
        let mut watch = Command::new("sh");
        watch.args(["-c", WATCH, "watch"]).arg(dir.path());
        watch.args(["--bind", "127.0.0.1", "--port", &port.to_string(), "--save", ""]);
        watch.args(if durable {
            &["--appendonly", "yes", "--appendfsync", "always"][..]
        } else {
            &["--appendonly", "no"]
        });
        // A separate process group, so that Ctrl-C ends only this process. The watcher then ends the server.
        #[cfg(unix)]
        std::os::unix::process::CommandExt::process_group(&mut watch, 0);
        let watcher = watch.stdin(Stdio::piped()).stdout(Stdio::null()).spawn()?;
        let server = Self { port, watcher, _dir: dir };
        server.wait_until_it_answers().await?;
        Ok(server)
    }

    pub(crate) fn url(&self) -> String {
        format!("redis://127.0.0.1:{}/", self.port)
    }

    async fn wait_until_it_answers(&self) -> Result<(), Failure> {
        let began = Instant::now();
        while let Err(error) = tokio::net::TcpStream::connect(("127.0.0.1", self.port)).await {
            if began.elapsed() > TO_START {
                return Err(format!("redis-server does not answer: {error}").into());
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        Ok(())
    }
}

impl Drop for RedisServer {
    fn drop(&mut self) {
        drop(self.watcher.stdin.take());
        let _ = self.watcher.wait();
    }
}
