use std::any::Any;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use pg_limiter::embedded::{Server, ServerConfig};
use pg_limiter::migrate::Migrator;
use pg_limiter::sqlx::postgres::PgPoolOptions;
use pg_limiter::sqlx::{self, AssertSqlSafe, Connection, PgConnection, PgPool};
use pg_limiter::{Engine, Limiter, LimiterConfig, Limits};

use super::pooler::{self, Pooler, Settings};
use super::{citus, yugabyte};

fn is_yugabyte() -> bool {
    std::env::var("PG_LIMITER_TEST_SERVER").is_ok_and(|server| server == "yugabyte")
}

/// The configuration of a private server from the environment: its version is `PG_LIMITER_TEST_VERSION`. It runs in a
/// container if `PG_LIMITER_TEST_SERVER` is `container`, or if no server programs are installed.
pub fn server_config() -> ServerConfig {
    let mut config = ServerConfig::default();
    config.version = std::env::var("PG_LIMITER_TEST_VERSION").ok();
    config.container = match std::env::var("PG_LIMITER_TEST_SERVER") {
        Ok(server) if server == "container" => true,
        Ok(server) if server == "yugabyte" || server == "citus" => false, // For tests that also need their own server.
        Ok(server) => {
            panic!("PG_LIMITER_TEST_SERVER is {server:?}; there are \"container\", \"citus\" and \"yugabyte\"")
        }
        Err(_) => false,
    };
    config
}

/// The server with the tests' databases: `DATABASE_URL`, or a private server for this process. Without a server, tests fail.
fn server_url() -> &'static str {
    static SERVER: OnceLock<(Box<dyn Any + Send + Sync>, String)> = OnceLock::new();
    let (_, url) = SERVER.get_or_init(|| {
        if let Ok(url) = std::env::var("DATABASE_URL") {
            return (Box::new(()), url);
        }
        if is_yugabyte() {
            return yugabyte::start();
        }
        if citus::is_asked_for() {
            return (Box::new(()), citus::url());
        }
        let mut config = server_config();
        config.durable = false;
        config.settings.push(("max_connections".into(), "300".into()));
        // For tests that remove a function of the engine.
        config.settings.push(("allow_system_table_mods".into(), "on".into()));
        let server = Server::start(&config).unwrap_or_else(|error| panic!("no PostgreSQL for the tests: {error}"));
        eprintln!("testing on {}", server.source());
        let url = server.url("postgres");
        (Box::new(server), url)
    });
    url
}

/// The same URL through the pooler, if the suite runs behind one.
fn app_url(url: &str) -> String {
    static POOLER: OnceLock<Pooler> = OnceLock::new();
    if !pooler::is_asked_for() {
        return url.to_owned();
    }
    POOLER.get_or_init(|| Pooler::start(server_url(), 4, Settings::Refused)).url(url)
}

pub(super) fn with_database(url: &str, name: &str) -> String {
    let (address, options) = url.split_once('?').map_or((url, ""), |(address, options)| (address, options));
    let slash = address.rfind('/').expect("a URL with a path");
    let options = if options.is_empty() { String::new() } else { format!("?{options}") };
    format!("{}/{name}{options}", &address[..slash])
}

/// A fresh database, dropped at the end of the test.
pub struct Database {
    pub name: String,
    pub url: String,
    /// Connects to the server itself, for the tests' own queries.
    pub pool: PgPool,
    /// The application's pool, for limiters and their callers. It goes through the pooler, if the suite runs behind one.
    pub app: PgPool,
    pub app_url: String,
}

impl Database {
    /// With the limiter's schema in `public`.
    pub async fn migrated() -> Self {
        let database = Self::empty().await;
        Migrator::default().distributed(citus::is_asked_for()).run(&database.pool).await.expect("migrate");
        database
    }

    pub async fn empty() -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let nth = NEXT.fetch_add(1, Ordering::Relaxed);
        let name = format!("pg_limiter_test_{}_{nth}", std::process::id());
        if citus::is_asked_for() {
            citus::make_database(&name).await;
        } else {
            let mut admin = PgConnection::connect(server_url()).await.expect("connect to the server");
            for sql in [format!("DROP DATABASE IF EXISTS {name}"), format!("CREATE DATABASE {name} TEMPLATE template0")]
            {
                sqlx::query(AssertSqlSafe(sql)).execute(&mut admin).await.expect("make a database");
            }
            admin.close().await.expect("close");
        }
        let url = with_database(server_url(), &name);
        let pool = Self::pool(&url, 16).await;
        // The default since PostgreSQL 15: a schema in which every role can create objects is rejected.
        let revoke = sqlx::query("REVOKE CREATE ON SCHEMA public FROM PUBLIC");
        revoke.execute(&pool).await.expect("revoke CREATE on the schema public");
        let app_url = app_url(&url);
        let app = if app_url == url { pool.clone() } else { Self::pool(&app_url, 16).await };
        Self { name, url, pool, app, app_url }
    }

    /// The default configuration, or one that works with a pooler if the suite runs behind one.
    pub fn config() -> LimiterConfig {
        let mut config = LimiterConfig::default();
        config.named_statements = !pooler::is_asked_for();
        config
    }

    /// A limiter over the application's pool, with the defaults for everything else.
    pub fn limiter(&self, limits: Limits) -> Limiter {
        Limiter::with_config(self.app.clone(), limits, Self::config())
    }

    pub async fn pool(url: &str, connections: u32) -> PgPool {
        PgPoolOptions::new().max_connections(connections).connect(url).await.expect("connect to a database")
    }

    pub async fn rows(&self) -> i64 {
        sqlx::query_scalar("SELECT count(*) FROM rate_limits").fetch_one(&self.pool).await.expect("count the rows")
    }

    /// The number of rows, over all tables, that contain the text in any column.
    pub async fn rows_with(&self, text: &str) -> i64 {
        let tables: Vec<String> = sqlx::query_scalar(
            "SELECT c.relname::text FROM pg_class AS c WHERE c.relnamespace = 'public'::regnamespace AND c.relkind = 'r'",
        )
        .fetch_all(&self.pool)
        .await
        .expect("the tables");
        assert!(tables.len() >= 4, "{tables:?}");
        let mut found = 0;
        for table in tables {
            let sql = format!("SELECT count(*) FROM {table} AS r WHERE r::text LIKE '%' || $1 || '%'");
            let rows: i64 =
                sqlx::query_scalar(sqlx::AssertSqlSafe(sql)).bind(text).fetch_one(&self.pool).await.expect("a count");
            found += rows;
        }
        found
    }

    /// Makes every write to a bucket fail with a conflict from now on.
    pub async fn rivals_always_win(&self) {
        self.execute(
            "CREATE FUNCTION always_conflict() RETURNS trigger LANGUAGE plpgsql AS
             $$ BEGIN RAISE EXCEPTION 'rival' USING ERRCODE = 'serialization_failure'; END $$;
             CREATE TRIGGER rival BEFORE INSERT OR UPDATE ON rate_limits FOR EACH ROW EXECUTE FUNCTION always_conflict()",
        )
        .await;
    }

    pub async fn execute(&self, sql: &str) {
        sqlx::raw_sql(AssertSqlSafe(sql.to_owned()))
            .execute(&self.pool)
            .await
            .unwrap_or_else(|error| panic!("{sql}: {error}"));
    }
}

impl Drop for Database {
    fn drop(&mut self) {
        let drop = format!("DROP DATABASE IF EXISTS {} WITH (FORCE)", self.name);
        // A private server is removed as a whole.
        if std::env::var_os("DATABASE_URL").is_none() && !citus::is_asked_for() {
            return;
        }
        let url = server_url();
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
                runtime.block_on(async {
                    if citus::is_asked_for() {
                        citus::drop_database(&self.name).await;
                    } else if let Ok(mut admin) = PgConnection::connect(url).await {
                        let _ = sqlx::query(AssertSqlSafe(drop)).execute(&mut admin).await;
                    }
                });
            });
        });
    }
}

/// A limiter for a database at this URL, for example behind a proxy that injects faults. It connects on its first call. A call ends by its deadline, which is 30 s unless `change` sets another one, even
/// if it waits for a connection of the pool. The engine is set to PostgreSQL, and not detected.
pub fn limiter_at(url: &str, limits: Limits, change: impl FnOnce(&mut LimiterConfig)) -> Limiter {
    let mut config = LimiterConfig::default();
    config.engine = Some(if citus::is_asked_for() { Engine::Citus } else { Engine::PostgreSql });
    config.retry.deadline = Duration::from_secs(30);
    change(&mut config);
    let options = PgPoolOptions::new().max_connections(4).acquire_timeout(config.retry.deadline);
    Limiter::with_config(options.connect_lazy(url).expect("a URL"), limits, config)
}
