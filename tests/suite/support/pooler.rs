//! pgbouncer in front of a server, in transaction mode: many client connections share few server connections.

use std::net::{TcpListener, TcpStream};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use pg_limiter::sqlx::postgres::PgConnectOptions;

/// How pgbouncer 1.18 treats the settings that a client requests when it connects.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Settings {
    Refused,
    Ignored,
    /// All are refused, including the one that sqlx always requests.
    #[allow(dead_code, reason = "for the tests of the tool")]
    AllRefused,
}

/// A running pgbouncer. It ends when this is dropped, or with the process.
pub struct Pooler {
    port: u16,
    /// The shell that stops pgbouncer once the shell's standard input is closed.
    watcher: Child,
    folder: tempfile::TempDir,
}

/// Ensures that a killed test process leaves no pgbouncer running.
const WATCH: &str = r#""$@" & pid=$!; trap '' INT TERM; cat >/dev/null; kill -9 "$pid"; wait "$pid""#;

fn is_root() -> bool {
    let output = Command::new("id").arg("-u").output().expect("id");
    output.stdout.trim_ascii() == b"0"
}

impl Pooler {
    /// Starts pgbouncer in transaction mode in front of the server of this URL (which requires no password), with `size`
    /// connections to each of its databases.
    pub fn start(url: &str, size: u32, settings: Settings) -> Self {
        Self::start_in("transaction", url, size, settings)
    }

    /// The same in this mode.
    pub fn start_in(mode: &str, url: &str, size: u32, settings: Settings) -> Self {
        let version = Command::new("pgbouncer").arg("--version").output();
        version.expect("these tests need pgbouncer, which tests/pooler installs");
        let server: PgConnectOptions = url.parse().expect("a URL");
        let folder = tempfile::Builder::new().prefix("pg-limiter-pooler-").tempdir().expect("a folder");
        open_to_all(folder.path(), 0o755);
        // This port was free a moment ago.
        let port = TcpListener::bind("127.0.0.1:0").expect("a port").local_addr().expect("an address").port();
        let ignored = match settings {
            Settings::AllRefused => "",
            Settings::Refused => "extra_float_digits",
            Settings::Ignored => "extra_float_digits, options",
        };
        let config = format!(
            "[databases]\n* = host={host} port={server_port} user={user}\n\
                 [pgbouncer]\nlisten_addr = 127.0.0.1\nlisten_port = {port}\nunix_socket_dir =\nauth_type = any\n\
                 pool_mode = {mode}\ndefault_pool_size = {size}\nmax_client_conn = 2000\nserver_idle_timeout = 2\n\
                 ignore_startup_parameters = {ignored}\n",
            host = server.get_host(),
            server_port = server.get_port(),
            user = server.get_username(),
        );
        let path = folder.path().join("pgbouncer.ini");
        std::fs::write(&path, config).expect("a file");
        open_to_all(&path, 0o644);
        let mut watcher = Command::new("/bin/sh");
        watcher.args(["-c", WATCH, "sh", "pgbouncer", "-q"]).arg(&path);
        if is_root() {
            watcher.args(["-u", "nobody"]);
        }
        let log = std::fs::File::create(folder.path().join("log")).expect("a file");
        let watcher = watcher.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(log).spawn().expect("a process");
        let pooler = Self { port, watcher, folder };
        if pooler.is_up() {
            return pooler;
        }
        let log = std::fs::read_to_string(pooler.folder.path().join("log")).unwrap_or_default();
        panic!("pgbouncer does not start: {log}");
    }

    fn is_up(&self) -> bool {
        let began = Instant::now();
        while began.elapsed() < Duration::from_secs(20) {
            if TcpStream::connect(("127.0.0.1", self.port)).is_ok() {
                return true;
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        false
    }

    /// The same database through the pooler.
    pub fn url(&self, url: &str) -> String {
        let database = url.rsplit('/').next().expect("a path");
        format!("postgres://anybody@127.0.0.1:{}/{database}", self.port)
    }
}

impl Drop for Pooler {
    fn drop(&mut self) {
        drop(self.watcher.stdin.take());
        let _ = self.watcher.wait();
    }
}

#[cfg(unix)]
fn open_to_all(path: &std::path::Path, mode: u32) {
    use std::os::unix::fs::PermissionsExt;
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).expect("permissions");
}

/// Whether the suite runs behind a pooler: `PG_LIMITER_TEST_POOLER=pgbouncer`.
pub fn is_asked_for() -> bool {
    match std::env::var("PG_LIMITER_TEST_POOLER") {
        Ok(name) if name == "pgbouncer" => true,
        Ok(name) => panic!("PG_LIMITER_TEST_POOLER is {name:?}; there is only \"pgbouncer\""),
        Err(_) => false,
    }
}
