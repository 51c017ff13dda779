//! Runs the server in a container, on machines without server programs.

use std::{
    env,
    hash::{BuildHasher, RandomState},
    io::Write,
    process::{Child, Command, Stdio},
    sync::mpsc::{self, Receiver, Sender},
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

use testcontainers::{
    ContainerAsync, GenericImage, ImageExt, TestcontainersError,
    bollard::errors::Error::DockerResponseServerError,
    core::{IntoContainerPort, WaitFor, error::ClientError, wait::LogWaitStrategy},
    runners::AsyncRunner,
};

use super::{Server, ServerConfig, ServerError, probe};

const READY: &str = "database system is ready to accept connections";
/// The extra timeout for downloading the image first.
const PULL_TIME: Duration = Duration::from_secs(300);

/// Its value is the id of the process that owns the container.
pub(super) const OWNER_LABEL: &str = "pg-limiter.owner";

pub(super) fn start(config: &ServerConfig, tried: &mut Vec<String>) -> Result<Option<Server>, ServerError> {
    let image =
        Image::choose(config, env::var_os("PG_LIMITER_IMAGE").map(|image| image.to_string_lossy().into_owned()));
    let (host, port, running) = match Running::start(config, &image) {
        Ok(started) => started,
        Err(error) => return image.failed(error, tried).map(|()| None),
    };
    // The engine accepts connections before the server does.
    let started = Instant::now();
    let version = loop {
        match probe::server_version(&host, port) {
            Ok(version) => break version,
            Err(error) if started.elapsed() > config.startup_timeout => {
                return Err(ServerError::Container(format!("{}: no connection to {host}:{port}: {error}", image.name)));
            }
            Err(_) => thread::sleep(Duration::from_millis(50)),
        }
    };
    if let (Some(named_by), Some(wanted)) = (image.named_by, config.wanted_instead_of(&version)) {
        let reason = format!("its version is {version}, not {wanted}");
        return Err(ServerError::Image { named_by, image: image.name, reason });
    }
    Ok(Some(Server {
        source: format!("PostgreSQL {version} in a container ({})", image.name),
        host,
        port,
        version,
        pid: None,
        data_dir: None,
        _running: Box::new(running),
    }))
}

/// The image to run, and the setting that names it.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Image {
    pub(super) name: String,
    /// `None` for the default image.
    pub(super) named_by: Option<&'static str>,
}

impl Image {
    pub(super) fn choose(config: &ServerConfig, in_env: Option<String>) -> Self {
        let in_env = in_env.filter(|image| !image.is_empty());
        let named = [("ServerConfig::image", config.image.clone()), ("PG_LIMITER_IMAGE", in_env)];
        match named.into_iter().find_map(|(by, name)| Some((by, name?))) {
            Some((by, name)) => Self { name, named_by: Some(by) },
            None => {
                let name = format!("postgres:{}-alpine", config.version.as_deref().unwrap_or("18"));
                Self { name, named_by: None }
            }
        }
    }

    /// Returns the name and the tag. A colon before a slash belongs to the port of a registry.
    pub(super) fn parts(&self) -> (&str, &str) {
        self.name.rsplit_once(':').filter(|(_, tag)| !tag.contains('/')).unwrap_or((&self.name, "latest"))
    }

    /// Classifies why no container runs. Without an engine or the default image, this is one more thing that was tried.
    fn failed(self, error: TestcontainersError, tried: &mut Vec<String>) -> Result<(), ServerError> {
        use ClientError::{CreateContainer, PullImage, StartContainer};
        let reason = error.to_string();
        match (error, self.named_by) {
            (
                TestcontainersError::Client(PullImage { .. } | CreateContainer(DockerResponseServerError { .. })),
                Some(named_by),
            ) => Err(ServerError::Image { named_by, image: self.name, reason }),
            (TestcontainersError::Client(error), _) if !matches!(error, StartContainer(_)) => {
                tried.push(format!("a container: {}: {reason}", self.name));
                Ok(())
            }
            _ => Err(ServerError::Container(format!("{}: {reason}", self.name))),
        }
    }
}

/// The thread that owns the container. Its runtime is independent of the caller's, so it can block.
#[derive(Debug)]
struct Running {
    stop: Option<Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

type Address = Result<(String, u16), TestcontainersError>;

impl Running {
    fn start(config: &ServerConfig, image: &Image) -> Result<(String, u16, Self), TestcontainersError> {
        let (stop, stopped) = mpsc::channel();
        let (ready, address) = mpsc::channel();
        let (config, image) = (config.clone(), image.clone());
        let thread = thread::spawn(move || own(&config, &image, &ready, &stopped));
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
fn own(config: &ServerConfig, image: &Image, ready: &Sender<Address>, stopped: &Receiver<()>) {
    let runtime = match tokio::runtime::Builder::new_current_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => return drop(ready.send(Err(error.into()))),
    };
    runtime.block_on(async {
        let name = format!("pg-limiter-{}-{:016x}", std::process::id(), RandomState::new().hash_one(()));
        // Before the container exists, so that it is also removed if this process is killed during the start.
        let remover = Remover::of(&name);
        let (container, host, port) = match start_container(config, image, &name).await {
            Ok(running) => running,
            Err(error) => return drop(ready.send(Err(error))),
        };
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

async fn start_container(
    config: &ServerConfig,
    image: &Image,
    name: &str,
) -> Result<(ContainerAsync<GenericImage>, String, u16), TestcontainersError> {
    let mut command = vec!["postgres".to_owned()];
    command.extend(config.all_settings().flat_map(|setting| ["-c".to_owned(), setting]));
    let (image, tag) = image.parts();
    let container = GenericImage::new(image, tag)
        .with_exposed_port(5432.tcp())
        // The image starts the server twice, the first time without a network, to initialize it. The log of that start goes
        // to standard output.
        .with_wait_for(WaitFor::log(LogWaitStrategy::stdout_or_stderr(READY).with_times(2)))
        .with_container_name(name)
        .with_label(OWNER_LABEL, std::process::id().to_string())
        .with_cmd(command)
        .with_env_var("POSTGRES_HOST_AUTH_METHOD", "trust")
        // The same options as for a server from programs.
        .with_env_var("POSTGRES_INITDB_ARGS", "--encoding=UTF8 --locale=C --no-sync")
        .with_startup_timeout(PULL_TIME + config.startup_timeout)
        .start()
        .await?;
    let host = container.get_host().await?.to_string();
    let port = container.get_host_port_ipv4(5432).await?;
    // The port is that of IPv4. On IPv6 it may belong to another container.
    let host = if host == "localhost" { "127.0.0.1".to_owned() } else { host };
    Ok((container, host, port))
}
