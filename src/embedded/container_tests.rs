//! Servers in containers. The ignored tests start real ones: `tests/containers` runs them.

use std::{
    env, fs,
    io::{BufRead, BufReader},
    process::{Child, Command, Stdio},
    thread,
    time::{Duration, Instant},
};

use super::{
    Server, ServerConfig, ServerError,
    container::{Image, OWNER_LABEL, Remover},
    probe,
};

fn in_container() -> ServerConfig {
    ServerConfig { container: true, durable: false, ..ServerConfig::default() }
}

fn with_image(image: &str) -> ServerConfig {
    ServerConfig { image: Some(image.to_owned()), ..in_container() }
}

/// A command that runs only this test of this program.
fn only(test: &str) -> Command {
    let module = module_path!().split_once("::").unwrap().1;
    let mut command = Command::new(env::current_exe().unwrap());
    command.args(["--exact", "--include-ignored", "--nocapture", &format!("{module}::{test}")]);
    command
}

fn wait_until(what: &str, condition: impl Fn() -> bool) {
    let started = Instant::now();
    while !condition() {
        assert!(started.elapsed() < Duration::from_secs(120), "not within 120 s: {what}");
        thread::sleep(Duration::from_millis(20));
    }
}

#[test]
fn the_image_is_that_of_the_config_then_of_the_environment_then_the_official_one() {
    let of_env = || Some("from/env:2".to_owned());
    let named = |name: &str, named_by| Image { name: name.to_owned(), named_by };
    let config = with_image("from.config:5000/postgres");
    assert_eq!(Image::choose(&config, of_env()), named("from.config:5000/postgres", Some("ServerConfig::image")));
    assert_eq!(Image::choose(&in_container(), of_env()), named("from/env:2", Some("PG_LIMITER_IMAGE")));
    assert_eq!(Image::choose(&in_container(), Some(String::new())), named("postgres:18-alpine", None));
    let old = ServerConfig { version: Some("14.2".into()), ..in_container() };
    assert_eq!(Image::choose(&old, None), named("postgres:14.2-alpine", None));
    assert_eq!(Image::choose(&old, of_env()), named("from/env:2", Some("PG_LIMITER_IMAGE")));
}

#[test]
fn the_port_of_a_registry_is_not_a_tag() {
    let parts = |name: &str| {
        let image = Image { name: name.to_owned(), named_by: None };
        let (name, tag) = image.parts();
        (name.to_owned(), tag.to_owned())
    };
    let expected = |name: &str, tag: &str| (name.to_owned(), tag.to_owned());
    assert_eq!(parts("postgres:18-alpine"), expected("postgres", "18-alpine"));
    assert_eq!(parts("postgres"), expected("postgres", "latest"));
    assert_eq!(parts("host:5000/a/postgres"), expected("host:5000/a/postgres", "latest"));
    assert_eq!(parts("host:5000/postgres:15"), expected("host:5000/postgres", "15"));
}

/// Uses a fake `docker` command that records its arguments.
#[test]
fn a_container_is_removed_only_after_its_owner_ends() {
    let dir = tempfile::tempdir().unwrap();
    let (docker, arguments) = (dir.path().join("docker"), dir.path().join("arguments"));
    fs::write(&docker, format!("#!/bin/sh\necho \"$@\" >'{}.new' && mv '{0}.new' '{0}'\n", arguments.display()))
        .unwrap();
    fs::set_permissions(&docker, std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
    if let Ok(end) = env::var("PG_LIMITER_TEST_REMOVER") {
        let remover = Remover::of("abc123");
        if end == "removed" {
            remover.dismiss();
        } else {
            std::mem::forget(remover); // Like a server in a static.
        }
        return;
    }
    let owner = |end: &str| {
        let path = format!("{}:{}", dir.path().display(), env::var("PATH").unwrap());
        let mut owner = only("a_container_is_removed_only_after_its_owner_ends");
        owner.env("PG_LIMITER_TEST_REMOVER", end).env("PATH", path);
        assert!(owner.output().unwrap().status.success());
    };
    owner("removed"); // `dismiss` has waited for the shell.
    assert!(!arguments.exists());
    owner("static");
    wait_until("the container is removed", || arguments.exists());
    assert_eq!(fs::read_to_string(&arguments).unwrap().trim(), "rm --force --volumes abc123");
}

#[test]
fn a_requested_container_is_never_replaced_by_programs() {
    // The child's DOCKER_HOST names no engine.
    if env::var("PG_LIMITER_TEST_NO_ENGINE").is_ok() {
        for config in [in_container(), with_image("some/image:1")] {
            let error = Server::start(&config).unwrap_err();
            assert!(matches!(error, ServerError::NotFound { .. }), "{error:?}");
            let error = error.to_string();
            assert!(error.contains("a container was requested") && error.contains("a container: "), "{error}");
        }
        return;
    }
    let mut asking = only("a_requested_container_is_never_replaced_by_programs");
    asking.env("PG_LIMITER_TEST_NO_ENGINE", "1").env("DOCKER_HOST", "unix:///nonexistent/docker.sock");
    let output = asking.output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

#[test]
#[ignore = "needs a container engine: run tests/containers"]
fn two_servers_run_in_containers() {
    let image = Image::choose(&in_container(), env::var("PG_LIMITER_IMAGE").ok()).name;
    let start = || Server::start(&in_container()).unwrap_or_else(|error| panic!("{error}"));
    let (first, second) = (start(), start());
    assert_ne!(first.port(), second.port());
    for server in [first, second] {
        assert_eq!(probe::server_version("127.0.0.1", server.port()).unwrap(), server.version());
        assert_eq!(server.source(), format!("PostgreSQL {} in a container ({image})", server.version()));
        assert_eq!((server.pid(), server.data_dir()), (None, None));
        let port = server.port();
        drop(server);
        assert!(probe::server_version("127.0.0.1", port).is_err());
    }
}

#[test]
#[ignore = "needs a container engine: run tests/containers"]
fn an_error_names_an_unusable_image() {
    for image in ["pg-limiter/no-such-image:1", "Not An Image"] {
        let error = Server::start(&with_image(image)).unwrap_err();
        assert!(matches!(error, ServerError::Image { named_by: "ServerConfig::image", .. }), "{error:?}");
        assert!(error.to_string().contains(&format!("{image:?}")), "{error}");
    }
    let image = Image::choose(&in_container(), env::var("PG_LIMITER_IMAGE").ok()).name;
    let config = ServerConfig { version: Some("9.6".into()), ..with_image(&image) };
    let error = Server::start(&config).unwrap_err();
    assert!(matches!(&error, ServerError::Image { reason, .. } if reason.ends_with("not 9.6")), "{error:?}");
}

/// The process that the test below starts.
#[test]
#[ignore = "a process of another test: run tests/containers"]
fn run_as_owner() {
    let Ok(end) = env::var("PG_LIMITER_TEST_END") else {
        return;
    };
    let mut config = in_container();
    if end == "refused" {
        config.settings.push(("no_such_setting".into(), "1".into()));
        let error = Server::start(&config).unwrap_err().to_string();
        assert!(error.contains("unrecognized configuration parameter"), "{error}");
        println!("started");
        return;
    }
    let server = Server::start(&config).unwrap_or_else(|error| panic!("{error}"));
    println!("started");
    match &*end {
        "drop" => drop(server),
        "static" => std::mem::forget(server),
        "panic" => {
            std::mem::forget(server);
            panic!("a failing test");
        }
        "abort" => std::process::abort(),
        _ => thread::sleep(Duration::from_secs(600)), // Until it is killed.
    }
}

/// Returns the ids of the containers that a process has started, whatever their state.
fn containers_of(owner: &Child) -> String {
    let filter = format!("label={OWNER_LABEL}={}", owner.id());
    let output = Command::new("docker").args(["ps", "--all", "--quiet", "--filter", &filter]).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

#[test]
#[ignore = "needs a container engine: run tests/containers"]
fn no_container_is_left_however_its_owner_ends() {
    for end in ["drop", "static", "refused", "panic", "abort", "kill", "kill while starting"] {
        let mut owner = only("run_as_owner");
        owner.env("PG_LIMITER_TEST_END", end).stdout(Stdio::piped()).stderr(Stdio::null());
        let mut owner = owner.spawn().unwrap();
        if end == "kill while starting" {
            wait_until("the container exists", || !containers_of(&owner).is_empty());
        } else {
            let mut lines = BufReader::new(owner.stdout.take().unwrap()).lines().map_while(Result::ok);
            assert!(lines.any(|line| line.contains("started")), "{end}: no container was started");
        }
        if end.starts_with("kill") {
            assert_eq!(containers_of(&owner).lines().count(), 1, "{end}");
            owner.kill().unwrap();
        }
        owner.wait().unwrap();
        wait_until(&format!("no container is left after {end:?}"), || containers_of(&owner).is_empty());
    }
}
