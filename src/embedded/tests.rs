//! Starts real servers, and checks that they are removed completely.

use std::{
    env, fs,
    io::{BufRead, BufReader},
    net::TcpListener,
    path::{Path, PathBuf},
    process::{Command, Stdio},
    thread,
    time::{Duration, Instant},
};

use super::{
    Server, ServerConfig, ServerError, probe,
    process::{launch, port_was_taken},
    programs,
    run_as::RunAs,
};

fn quick() -> ServerConfig {
    ServerConfig { durable: false, ..ServerConfig::default() }
}

fn start() -> Server {
    Server::start(&quick()).unwrap_or_else(|error| panic!("{error}"))
}

/// Whether a process runs. A zombie does not.
fn runs(pid: u32) -> bool {
    if Path::new("/proc/self/stat").exists() {
        let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
        return stat.rsplit_once(") ").is_some_and(|(_, state)| !state.starts_with('Z'));
    }
    let ps = Command::new("ps").args(["-o", "stat=", "-p", &pid.to_string()]).output().unwrap();
    !ps.stdout.is_empty() && !ps.stdout.starts_with(b"Z")
}

fn folder(server: &Server) -> PathBuf {
    server.data_dir().unwrap().parent().unwrap().to_owned()
}

fn assert_gone(pid: u32, folder: &Path, within: Duration) {
    let started = Instant::now();
    while runs(pid) || folder.exists() {
        let took = started.elapsed();
        assert!(took <= within, "after {took:?}: runs: {}, folder: {}", runs(pid), folder.exists());
        thread::sleep(Duration::from_millis(10));
    }
}

#[test]
fn two_servers_run_and_remove_all_files() {
    let (first, second) = (start(), start());
    for server in [&first, &second] {
        assert_eq!(probe::server_version("127.0.0.1", server.port()).unwrap(), server.version());
        assert!(runs(server.pid().unwrap()));
        assert!(server.source().contains(server.version()), "{}", server.source());
    }
    assert_eq!(first.url("a b"), format!("postgres://postgres@127.0.0.1:{}/a%20b", first.port()));
    for server in [first, second] {
        let (pid, folder) = (server.pid().unwrap(), folder(&server));
        drop(server);
        assert_gone(pid, &folder, Duration::ZERO);
    }
}

/// The process that the test below kills.
#[test]
fn run_as_owner() {
    let Ok(end) = env::var("PG_LIMITER_TEST_END") else {
        return;
    };
    let server = start();
    println!("owner {} {}", server.pid().unwrap(), folder(&server).display());
    if end == "abort" {
        std::process::abort();
    }
    thread::sleep(Duration::from_secs(60));
}

#[test]
fn server_and_files_are_removed_when_the_owner_is_killed_or_aborts() {
    let name = concat!(module_path!(), "::run_as_owner").split_once("::").unwrap().1;
    for end in ["kill", "abort"] {
        let mut owner = Command::new(env::current_exe().unwrap());
        owner.args(["--exact", name, "--nocapture"]).env("PG_LIMITER_TEST_END", end);
        let mut owner = owner.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
        let lines = BufReader::new(owner.stdout.take().unwrap()).lines().map_while(Result::ok);
        // The test harness may print the name of the test on the same line.
        let line = lines.into_iter().find_map(|line| Some(line.split_once("owner ")?.1.to_owned())).unwrap();
        let (pid, folder) = line.split_once(' ').unwrap();
        if end == "kill" {
            owner.kill().unwrap();
        }
        owner.wait().unwrap();
        assert_gone(pid.parse().unwrap(), Path::new(folder), Duration::from_secs(5));
    }
}

#[test]
fn a_taken_port_is_recognized() {
    let taken = TcpListener::bind(("127.0.0.1", 0)).unwrap();
    let port = taken.local_addr().unwrap().port();
    let run_as = RunAs::choose().unwrap();
    let programs = programs::find(&quick(), &run_as, &mut Vec::new()).unwrap().unwrap();
    match launch(&quick(), &programs, &run_as, port) {
        Err(ServerError::Ended { program: "postgres", log, .. }) => assert!(port_was_taken(&log), "{log}"),
        other => panic!("{other:?}"),
    }
}

#[test]
fn errors_name_the_cause() {
    let mut config = quick();
    config.settings.push(("no_such_setting".into(), "1".into()));
    let error = Server::start(&config).unwrap_err().to_string();
    assert!(error.contains("unrecognized configuration parameter"), "{error}");

    config = ServerConfig { startup_timeout: Duration::from_millis(1), ..quick() };
    let error = Server::start(&config).unwrap_err();
    assert!(matches!(error, ServerError::Timeout { .. }), "{error}");

    let empty = tempfile::tempdir().unwrap();
    config = ServerConfig { bin_dir: Some(empty.path().to_owned()), ..quick() };
    let error = Server::start(&config).unwrap_err().to_string();
    assert!(error.contains("ServerConfig::bin_dir") && error.contains("no `initdb`"), "{error}");

    config = ServerConfig { version: Some("9.0".into()), fetch: false, ..quick() };
    let error = Server::start(&config).unwrap_err().to_string();
    assert!(error.contains("9.0") || error.contains("no `initdb`"), "{error}");
}

#[test]
fn settings_reach_the_server_and_a_full_log_does_not_stop_it() {
    let mut config = quick();
    config.settings.push(("log_min_messages".into(), "debug5".into()));
    let server = Server::start(&config).unwrap_or_else(|error| panic!("{error}"));
    let log = folder(&server).join("server.log");
    while fs::metadata(&log).unwrap().len() < 200_000 {
        probe::server_version("127.0.0.1", server.port()).unwrap();
    }
}
