//! YugabyteDB for the suite: the cluster at `YUGABYTE_URL`, or a container with one node.

use std::any::Any;
use std::io::Write;
use std::process::{Command, Stdio};
use std::time::Duration;

use pg_limiter::sqlx::{self, AssertSqlSafe, Connection, PgConnection};
use testcontainers::core::{IntoContainerPort, WaitFor};
use testcontainers::runners::AsyncRunner;
use testcontainers::{GenericImage, ImageExt};

/// Returns the container and the URL. If neither is available, it fails with what is missing.
pub fn start() -> (Box<dyn Any + Send + Sync>, String) {
    // The server serves all tests, so it does not belong to the runtime of one test.
    let runtime =
        tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().expect("a runtime");
    let find = async {
        let (server, url) = match std::env::var("YUGABYTE_URL") {
            Ok(url) => (Box::new(()) as Box<dyn Any + Send + Sync>, url),
            Err(_) => start_container().await,
        };
        report(&url).await;
        (server, url)
    };
    let (server, url) = std::thread::scope(|scope| scope.spawn(|| runtime.block_on(find)).join()).expect("a server");
    (Box::new((runtime, server)), url)
}

/// Prints what a report of this run has to say about the cluster. The test runner does not capture it.
async fn report(url: &str) {
    const FACTS: [(&str, &str); 6] = [
        ("version", "SELECT version()"),
        ("nodes", "SELECT string_agg(concat_ws(' ', cloud, region, zone, node_type), ', ') FROM yb_servers()"),
        ("level of READ COMMITTED", "SELECT yb_get_effective_transaction_isolation_level()"),
        ("yb_max_query_layer_retries", "SHOW yb_max_query_layer_retries"),
        ("ysql_output_buffer_size", "SHOW ysql_output_buffer_size"),
        ("default_transaction_isolation", "SHOW default_transaction_isolation"),
    ];
    let mut conn = PgConnection::connect(url).await.unwrap_or_else(|error| panic!("cannot connect to {url}: {error}"));
    let mut facts = String::from("\n--- the cluster, for a report ---\n");
    for (name, sql) in FACTS {
        let fact: Result<String, sqlx::Error> = sqlx::query_scalar(AssertSqlSafe(sql)).fetch_one(&mut conn).await;
        let fact = fact.unwrap_or_else(|error| match error.as_database_error() {
            Some(error) => format!("not known: {}", error.message()),
            None => panic!("cannot read {name} of the cluster: {error}"),
        });
        facts.push_str(&format!("{name}: {fact}\n"));
    }
    facts.push_str("---\n");
    std::io::stderr().write_all(facts.as_bytes()).expect("standard error");
}

#[expect(clippy::zombie_processes, reason = "it waits for the end of this process")]
async fn start_container() -> (Box<dyn Any + Send + Sync>, String) {
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
