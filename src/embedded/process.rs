//! Runs the server's processes. A watcher runs `initdb` and `postgres`, and stops them when its standard input ends.

use std::{
    env, fs,
    io::Read,
    net::TcpListener,
    os::unix::process::CommandExt,
    path::Path,
    process::{Child, Stdio},
    thread,
    time::{Duration, Instant},
};

use tempfile::TempDir;

use super::{
    Server, ServerConfig, ServerError, probe,
    programs::{self, Programs},
    run_as::RunAs,
};

const HOST: &str = "127.0.0.1";
const POLL: Duration = Duration::from_millis(10);
const PORT_ATTEMPTS: usize = 5;

pub(super) fn start(config: &ServerConfig, tried: &mut Vec<String>) -> Result<Option<Server>, ServerError> {
    let run_as = RunAs::choose()?;
    let Some(programs) = programs::find(config, &run_as, tried)? else {
        return Ok(None);
    };
    let mut attempt = 1;
    loop {
        match launch(config, &programs, &run_as, free_port()?) {
            // Another process took the port before the server started.
            Err(ServerError::Ended { log, .. }) if attempt < PORT_ATTEMPTS && port_was_taken(&log) => attempt += 1,
            launched => return launched.map(Some),
        }
    }
}

fn free_port() -> Result<u16, ServerError> {
    let listener = TcpListener::bind((HOST, 0)).and_then(|listener| listener.local_addr());
    Ok(listener.map_err(ServerError::io("find a free port"))?.port())
}

pub(super) fn port_was_taken(log: &str) -> bool {
    log.contains("could not bind IPv4 address") || log.contains("could not create any TCP/IP sockets")
}

pub(super) fn launch(
    config: &ServerConfig,
    programs: &Programs,
    run_as: &RunAs,
    port: u16,
) -> Result<Server, ServerError> {
    let started = Instant::now();
    let mut running = Running::spawn(config, programs, run_as, port)?;
    let pid = loop {
        // The server writes `ready` to a file in its folder, so it is this server that answers on the port.
        if let Some(pid) = ready_pid(running.dir.path())
            && probe::server_version(HOST, port).is_ok()
        {
            break pid;
        }
        let ended = running.watcher.try_wait().map_err(ServerError::io("check the state of the server's watcher"))?;
        if let Some(status) = ended {
            let (program, log) = running.log();
            return Err(ServerError::Ended { program, status: status.to_string(), log });
        }
        if started.elapsed() > config.startup_timeout {
            let (program, log) = running.log();
            return Err(ServerError::Timeout { program, after: config.startup_timeout, log });
        }
        thread::sleep(POLL);
    };
    Ok(Server {
        host: HOST.to_owned(),
        port,
        version: programs.version.clone(),
        source: format!("PostgreSQL {} from {} ({})", programs.version, programs.from, programs.dir.display()),
        pid: Some(pid),
        data_dir: Some(running.dir.path().join("data")),
        _running: Box::new(running),
    })
}

/// The processes and their folder. Dropping it stops the processes and removes the folder.
#[derive(Debug)]
struct Running {
    watcher: Child,
    dir: TempDir,
}

impl Running {
    fn spawn(config: &ServerConfig, programs: &Programs, run_as: &RunAs, port: u16) -> Result<Self, ServerError> {
        let dir = tempfile::Builder::new()
            .prefix("pg-limiter-")
            .tempdir_in(config.temp_dir.clone().unwrap_or_else(|| run_as.temp_dir()));
        let dir = dir.map_err(ServerError::io("create a folder for the server"))?;
        run_as.give(dir.path()).map_err(ServerError::io("change the owner of the server's folder"))?;

        let mut command = run_as.command("/bin/sh");
        command.args(["-c", include_str!("watch.sh"), "pg-limiter-watch"]).arg(dir.path()).arg(&programs.dir);
        command.args(["-c", &format!("listen_addresses={HOST}"), "-c", &format!("port={port}")]);
        // No Unix socket: the path of the folder may be too long, and two ways to connect would need two checks.
        command.args(["-c", "unix_socket_directories=", "-c", "logging_collector=off"]);
        for setting in config.all_settings() {
            command.arg("-c").arg(setting);
        }
        for (name, _) in env::vars_os().filter(|(name, _)| name.to_string_lossy().starts_with("PG")) {
            command.env_remove(name);
        }
        // Untranslated messages can be searched. On macOS the server does not start without a locale.
        command.env("LC_ALL", "C");
        // Ctrl-C on the terminal is meant for the process that owns the server. It must not end the watcher.
        command.process_group(0);
        // The watcher keeps its output open until everything is removed, and `Drop` waits for this. It does not inherit the
        // output of this process: a reader of that output would wait for the server, too.
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
        let watcher = command.spawn().map_err(ServerError::io("start the server's watcher"))?;
        Ok(Self { watcher, dir })
    }

    /// Returns the program that is running or has failed, and the end of its log.
    fn log(&self) -> (&'static str, String) {
        let read = |name: &str| fs::read(self.dir.path().join(name));
        match (read("server.log"), read("initdb.log")) {
            (Ok(log), _) => ("postgres", tail(&log)),
            (Err(_), log) => ("initdb", tail(&log.unwrap_or_default())),
        }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        drop(self.watcher.stdin.take());
        if let Some(mut output) = self.watcher.stdout.take() {
            let _ = output.read_to_end(&mut Vec::new());
        }
        let _ = self.watcher.wait();
    }
}

/// Returns the process id of the server once it is ready. It is on line 1 of the file, and the state on line 8.
fn ready_pid(dir: &Path) -> Option<u32> {
    let file = fs::read_to_string(dir.join("data/postmaster.pid")).ok()?;
    let ready = file.lines().nth(7)?.trim() == "ready";
    if ready { file.lines().next()?.trim().parse().ok() } else { None }
}

fn tail(log: &[u8]) -> String {
    let log = String::from_utf8_lossy(log);
    let lines: Vec<_> = log.lines().collect();
    let lines = &lines[lines.len().saturating_sub(30)..];
    if lines.is_empty() { "(empty)".to_owned() } else { lines.join("\n") }
}
