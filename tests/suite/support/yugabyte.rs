//! YugabyteDB for the suite: the cluster at `YUGABYTE_URL`, or a container with one node.

use std::any::Any;
use std::process::{Command, Stdio};
use std::time::Duration;

use pg_limiter::sqlx::{Connection, PgConnection};
use testcontainers::core::{IntoContainerPort, WaitFor};
use testcontainers::runners::AsyncRunner;
use testcontainers::{GenericImage, ImageExt};

/// Returns the container and the URL. If neither is available, it fails with what is missing.
pub fn start() -> (Box<dyn Any + Send + Sync>, String) {
    if let Ok(url) = std::env::var("YUGABYTE_URL") {
        return (Box::new(()), url);
    }
    // The container serves all tests, so it does not belong to the runtime of one test.
    let runtime =
        tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().expect("a runtime");
    let container = std::thread::scope(|scope| scope.spawn(|| runtime.block_on(run())).join()).expect("a container");
    (Box::new((runtime, container.0)), container.1)
}

#[expect(clippy::zombie_processes, reason = "it waits for the end of this process")]
async fn run() -> (Box<dyn Any + Send + Sync>, String) {
    let tag = std::env::var("PG_LIMITER_TEST_VERSION").unwrap_or_else(|_| "latest".to_owned());
    let image = GenericImage::new("yugabytedb/yugabyte", &tag)
        .with_exposed_port(5433.tcp())
        .with_wait_for(WaitFor::message_on_stdout("Data placement constraint successfully verified"))
        .with_cmd([
            "bin/yugabyted",
            "start",
            "--background=false",
            "--ui=false",
            "--tserver_flags=yb_enable_read_committed_isolation=true",
        ])
        .with_startup_timeout(Duration::from_secs(600));
    let container = image.start().await.unwrap_or_else(|error| {
        panic!(
            "no YugabyteDB to test on: YUGABYTE_URL is not set, and no container can be started: {error}; \
             set YUGABYTE_URL=postgres://yugabyte@host:5433/yugabyte, or start Docker"
        )
    });
    // A container in a static is never dropped, so a shell removes it once this process has ended, in whatever way.
    let remove = format!("cat >/dev/null; docker rm -f {} >/dev/null 2>&1", container.id());
    let remover = Command::new("/bin/sh").args(["-c", &remove]).stdin(Stdio::piped()).spawn().expect("a shell");
    let host = container.get_host().await.expect("the host");
    let port = container.get_host_port_ipv4(5433).await.expect("the port");
    let url = format!("postgres://yugabyte:yugabyte@{host}:{port}/yugabyte");
    for _ in 0..600 {
        if let Ok(connection) = PgConnection::connect(&url).await {
            connection.close().await.expect("close");
            return (Box::new((container, remover)), url);
        }
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
    panic!("the container {} does not answer on {host}:{port}", container.id());
}
