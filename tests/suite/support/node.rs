//! A test's own server, which can be killed, restarted and failed over.

use std::fs;
use std::net::TcpListener;
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::OnceLock;
use std::time::Duration;

use pg_limiter::embedded::{Server, ServerConfig};
use pg_limiter::sqlx::{Connection, PgConnection};
use tempfile::TempDir;

use super::signal;

/// The folder of the server programs and the user that they run as: the same as for the tests' other servers.
struct Programs {
    dir: PathBuf,
    user: (u32, u32),
}

impl Programs {
    fn find() -> &'static Self {
        static PROGRAMS: OnceLock<Programs> = OnceLock::new();
        PROGRAMS.get_or_init(Self::of_a_server)
    }

    fn of_a_server() -> Self {
        let mut config = ServerConfig::default();
        config.durable = false;
        config.startup_timeout = std::time::Duration::from_secs(120); // The machine may be busy.
        config.version = std::env::var("PG_LIMITER_TEST_VERSION").ok();
        let server = Server::start(&config).expect("a server");
        let source = server.source();
        let dir = source.rsplit_once('(').and_then(|(_, rest)| rest.strip_suffix(')')).expect("the programs' folder");
        let owner = fs::metadata(server.data_dir().expect("a folder")).expect("its owner");
        Self { dir: dir.into(), user: (owner.uid(), owner.gid()) }
    }

    fn command(&self, name: &str) -> Command {
        let mut command = Command::new(self.dir.join(name));
        command.env("LC_ALL", "C").current_dir("/").stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        if fs::metadata("/proc/self").is_ok_and(|me| me.uid() == 0) {
            command.uid(self.user.0).gid(self.user.1);
        }
        command
    }

    fn give(&self, path: &Path) {
        let _ = chown(path, Some(self.user.0), Some(self.user.1)); // Not needed if the folder is already the user's.
    }
}

/// A server with its data folder. Dropping it kills the server.
pub struct Node {
    programs: &'static Programs,
    dir: TempDir,
    data: PathBuf,
    port: u16,
    settings: Vec<String>,
    postmaster: Option<Child>,
    /// The folder of its locales, if these are not the system's.
    locales: Option<TempDir>,
}

impl Node {
    pub async fn start(settings: &[&str]) -> Self {
        let settings: Vec<String> = settings.iter().map(|setting| (*setting).to_owned()).collect();
        let mut node = tokio::task::spawn_blocking(move || Self::make(settings)).await.expect("a server");
        node.restart().await;
        node
    }

    /// Starts a server with messages in another language. The machine and the server programs must have it.
    pub async fn start_in(locale: &str) -> Self {
        let locales = tempfile::Builder::new().prefix("pg-limiter-locales-").tempdir_in("/tmp").expect("a folder");
        fs::set_permissions(locales.path(), PermissionsExt::from_mode(0o755)).expect("a readable folder");
        let path = locales.path().join(format!("{locale}.UTF-8"));
        let made =
            Command::new("localedef").args(["-i", locale, "-f", "UTF-8"]).arg(&path).output().expect("localedef");
        assert!(made.status.success(), "the locale {locale} cannot be made: apt-get install locales: {made:?}");
        let setting = format!("lc_messages={locale}.UTF-8");
        let mut node = tokio::task::spawn_blocking(move || Self::make(vec![setting])).await.expect("a server");
        node.locales = Some(locales);
        node.restart().await;
        node
    }

    fn make(settings: Vec<String>) -> Self {
        let programs = Programs::find();
        let dir = tempfile::Builder::new().prefix("pg-limiter-node-").tempdir_in("/tmp").expect("a folder");
        programs.give(dir.path());
        let data = dir.path().join("data");
        let init =
            programs.command("initdb").arg("-D").arg(&data).args(["-U", "postgres", "-A", "trust", "-N"]).status();
        assert!(init.expect("initdb").success(), "initdb failed");
        let port = TcpListener::bind("127.0.0.1:0").expect("a port").local_addr().expect("an address").port();
        Self { programs, dir, data, port, settings, postmaster: None, locales: None }
    }

    /// Makes the server's user the owner of a folder.
    pub fn give(&self, path: &Path) {
        self.programs.give(path);
    }

    pub fn url(&self) -> String {
        format!("postgres://postgres@127.0.0.1:{}/postgres", self.port)
    }

    /// Starts the server again, and waits until it answers.
    pub async fn restart(&mut self) {
        for _ in 0..600 {
            let ended = self.postmaster.as_mut().is_none_or(|child| child.try_wait().expect("its state").is_some());
            if ended {
                // Remains of a killed server may be in the way for a moment.
                let mut command = self.programs.command("postgres");
                command.arg("-D").arg(&self.data).args(["-p", &self.port.to_string()]);
                command.args(["-c", "listen_addresses=127.0.0.1", "-c", "unix_socket_directories="]);
                if let Some(locales) = &self.locales {
                    command.env_remove("LC_ALL").env("LOCPATH", locales.path());
                }
                for setting in &self.settings {
                    command.args(["-c", setting]);
                }
                self.postmaster = Some(command.spawn().expect("postgres"));
            }
            if let Ok(connection) = PgConnection::connect(&self.url()).await {
                connection.close().await.expect("close");
                return;
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        panic!("the server does not start");
    }

    /// Kills the postmaster with SIGKILL; the other processes end when they notice.
    pub fn kill(&mut self) {
        if let Some(mut child) = self.postmaster.take() {
            child.kill().expect("kill");
            child.wait().expect("its end");
        }
    }

    /// Replaces the server by a copy in standby mode, which is read-only until it is promoted.
    pub async fn fail_over(&mut self) {
        let pid = self.postmaster.as_ref().expect("a server").id();
        signal(pid, "INT");
        self.postmaster.take().expect("a server").wait().expect("its end");
        let copy = self.dir.path().join("standby");
        let copied = Command::new("cp").arg("-a").arg(&self.data).arg(&copy).status().expect("cp");
        assert!(copied.success());
        fs::write(copy.join("standby.signal"), "").expect("a signal");
        self.programs.give(&copy.join("standby.signal"));
        self.data = copy;
        self.restart().await;
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        self.kill();
    }
}
