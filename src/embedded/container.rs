//! Runs the server in a container, on machines without server programs.

use std::{
    io::Write,
    process::{Child, Command, Stdio},
    sync::mpsc::{self, Receiver, Sender},
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

use testcontainers::{
    ContainerAsync, GenericImage, ImageExt, TestcontainersError,
    core::{IntoContainerPort, WaitFor},
    runners::AsyncRunner,
};

use super::{Server, ServerConfig, ServerError, probe};

const READY: &str = "database system is ready to accept connections";
/// The extra timeout for downloading the image first.
const PULL_TIME: Duration = Duration::from_secs(300);

pub(super) fn start(config: &ServerConfig, tried: &mut Vec<String>) -> Result<Option<Server>, ServerError> {
    let (host, port, running) = match Running::start(config) {
        Ok(started) => started,
        // There is no engine, or it cannot provide the image.
        Err(TestcontainersError::Client(error)) => {
            tried.push(format!("a container: {error}"));
            return Ok(None);
        }
        Err(error) => return Err(ServerError::Container(error.to_string())),
    };
    // The engine accepts connections before the server does.
    let started = Instant::now();
    let version = loop {
        match probe::server_version(&host, port) {
            Ok(version) => break version,
            Err(error) if started.elapsed() > config.startup_timeout => {
                return Err(ServerError::Container(format!("no connection to {host}:{port}: {error}")));
            }
            Err(_) => thread::sleep(Duration::from_millis(50)),
        }
    };
    Ok(Some(Server {
        source: format!("PostgreSQL {version} in a container (postgres:{})", tag(config)),
        host,
        port,
        version,
        pid: None,
        data_dir: None,
        _running: Box::new(running),
    }))
}

/// The thread that owns the container. Its runtime is independent of the caller's, so it can block.
#[derive(Debug)]
struct Running {
    stop: Option<Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

type Address = Result<(String, u16), TestcontainersError>;

impl Running {
    fn start(config: &ServerConfig) -> Result<(String, u16, Self), TestcontainersError> {
        let (stop, stopped) = mpsc::channel();
        let (ready, address) = mpsc::channel();
        let config = config.clone();
        let thread = thread::spawn(move || own(&config, &ready, &stopped));
        let running = Self { stop: Some(stop), thread: Some(thread) };
        let gone = |_| Err(TestcontainersError::other("the thread that starts it ended"));
        let (host, port) = address.recv().unwrap_or_else(gone)?;
        Ok((host, port, running))
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// Starts the container, and removes it when `stopped` has no sender.
fn own(config: &ServerConfig, ready: &Sender<Address>, stopped: &Receiver<()>) {
    let runtime = match tokio::runtime::Builder::new_current_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => return drop(ready.send(Err(error.into()))),
    };
    runtime.block_on(async {
        let (container, host, port) = match run(config).await {
            Ok(running) => running,
            Err(error) => return drop(ready.send(Err(error))),
        };
        // Only after the container exists. If the start fails, the code that starts the container removes it.
        let remover = Remover::of(container.id());
        if ready.send(Ok((host, port))).is_ok() {
            let _ = stopped.recv();
        }
        if container.rm().await.is_ok() {
            remover.dismiss();
        }
    });
}

/// A shell that removes the container when this process ends, whatever the reason. The container engine
/// does not know that the container belongs to this process.
#[derive(Debug)]
pub(super) struct Remover(Option<Child>);

impl Remover {
    pub(super) fn of(container: &str) -> Self {
        let mut shell = Command::new("/bin/sh");
        shell.args(["-c", include_str!("remove.sh"), "pg-limiter-remove", container]);
        // Ctrl-C on the terminal must not end it.
        #[cfg(unix)]
        std::os::unix::process::CommandExt::process_group(&mut shell, 0);
        shell.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::null());
        let remover = shell.spawn();
        if let Err(error) = &remover {
            tracing::warn!(container, %error, "the container is not removed if this process is killed");
        }
        Self(remover.ok())
    }

    pub(super) fn dismiss(mut self) {
        if let Some(mut remover) = self.0.take() {
            let notified = remover.stdin.take().is_some_and(|mut input| input.write_all(b"removed\n").is_ok());
            if notified {
                let _ = remover.wait();
            }
        }
    }
}

async fn run(config: &ServerConfig) -> Result<(ContainerAsync<GenericImage>, String, u16), TestcontainersError> {
    let mut command = vec!["postgres".to_owned()];
    command.extend(config.all_settings().flat_map(|setting| ["-c".to_owned(), setting]));
    let container = GenericImage::new("postgres", &tag(config))
        .with_exposed_port(5432.tcp())
        // The image starts the server twice, the first time without a network, to initialize it.
        .with_wait_for(WaitFor::message_on_stderr(READY))
        .with_wait_for(WaitFor::message_on_stdout(READY))
        .with_cmd(command)
        .with_env_var("POSTGRES_HOST_AUTH_METHOD", "trust")
        // The same options as for a server from programs.
        .with_env_var("POSTGRES_INITDB_ARGS", "--encoding=UTF8 --locale=C --no-sync")
        .with_startup_timeout(PULL_TIME + config.startup_timeout)
        .start()
        .await?;
    let host = container.get_host().await?.to_string();
    let port = container.get_host_port_ipv4(5432).await?;
    Ok((container, host, port))
}

fn tag(config: &ServerConfig) -> String {
    format!("{}-alpine", config.version.as_deref().unwrap_or("18"))
}
