use std::any::Any;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use pg_limiter::embedded::{Server, ServerConfig};
use pg_limiter::migrate::{Migrator, Use};
use pg_limiter::sqlx::postgres::PgPoolOptions;
use pg_limiter::sqlx::{self, AssertSqlSafe, Connection, PgConnection, PgPool};
use pg_limiter::{Engine, Limiter, LimiterConfig, Limits};
use tokio::sync::OnceCell;

use super::pooler::{self, Pooler, Settings};
use super::url::with_database;
use super::{citus, guide, yugabyte};

fn is_yugabyte() -> bool {
    std::env::var("PG_LIMITER_TEST_SERVER").is_ok_and(|server| server == "yugabyte")
}

/// Whether the tests' databases are on a server of this process.
fn is_private() -> bool {
    std::env::var_os("DATABASE_URL").is_none() && !is_yugabyte() && !citus::is_asked_for()
}

/// The configuration of a private server from the environment: its version is `PG_LIMITER_TEST_VERSION`. It runs in a
/// container if `PG_LIMITER_TEST_SERVER` is `container`, or if no server programs are installed.
pub fn server_config() -> ServerConfig {
    let mut config = ServerConfig::default();
    config.version = std::env::var("PG_LIMITER_TEST_VERSION").ok();
    config.startup_timeout = Duration::from_secs(120); // The machine may be busy.
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

/// A folder in memory with enough room. Most of the suite's time would be the making of files, for hundreds of databases.
fn in_memory() -> Option<PathBuf> {
    let dir = Path::new("/dev/shm");
    let output = std::process::Command::new("df").arg("-Pk").arg(dir).output().ok()?;
    let output = String::from_utf8(output.stdout).ok()?;
    let kilobytes: u64 = output.lines().nth(1)?.split_whitespace().nth(3)?.parse().ok()?;
    (kilobytes > 3_000_000).then(|| dir.to_owned())
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
        config.temp_dir = in_memory();
        config.settings.push(("max_connections".into(), "600".into()));
        config.settings.push(("max_wal_size".into(), "256MB".into()));
        // With hundreds of databases, the autovacuum would always be at work, and no test lives long enough to need it.
        config.settings.push(("autovacuum_naptime".into(), "1d".into()));
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

/// Makes a copy of this database, and returns its name.
async fn create(template: &str) -> String {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let name = format!("pg_limiter_test_{}_{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
    if citus::is_asked_for() {
        citus::make_database(&name).await;
        return name;
    }
    let mut admin = PgConnection::connect(server_url()).await.expect("connect to the server");
    let version: i32 = sqlx::query_scalar("SELECT current_setting('server_version_num')::integer")
        .fetch_one(&mut admin)
        .await
        .expect("the version");
    // Copying files takes half the time of the newer way, which copies pages and logs each of them.
    let strategy = if version >= 150_000 && !is_yugabyte() { " STRATEGY file_copy" } else { "" };
    for sql in
        [format!("DROP DATABASE IF EXISTS {name}"), format!("CREATE DATABASE {name} TEMPLATE {template}{strategy}")]
    {
        sqlx::query(AssertSqlSafe(sql)).execute(&mut admin).await.expect("make a database");
    }
    admin.close().await.expect("close");
    name
}

/// The default since PostgreSQL 15: a schema in which every role can create objects is rejected.
async fn secure(conn: &mut PgConnection) {
    let revoke = sqlx::query("REVOKE CREATE ON SCHEMA public FROM PUBLIC");
    revoke.execute(conn).await.expect("revoke CREATE on the schema public");
}

/// The role of the applications: it has the rights that the guide gives for each use, and no others.
const APP_ROLE: &str = "app_of_the_tests";

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
    /// With the limiter's schema, `rate_limit`.
    pub async fn migrated() -> Self {
        if !is_private() {
            let database = Self::empty().await;
            Migrator::default().distributed(citus::is_asked_for()).run(&database.pool).await.expect("migrate");
            return database;
        }
        // A copy of a migrated database takes half the time of a migration.
        static MIGRATED: OnceCell<String> = OnceCell::const_new();
        let migrate = || async {
            let name = create("template0").await;
            let mut conn = PgConnection::connect(&with_database(server_url(), &name)).await.expect("connect");
            secure(&mut conn).await;
            pg_limiter::migrate::migrate_on(&mut conn).await.expect("migrate");
            let grants: String = Use::ALL.iter().map(|of| guide::grants(*of).replace("app_role", APP_ROLE)).collect();
            let sql = format!(
                "CREATE ROLE {APP_ROLE}; GRANT USAGE ON SCHEMA rate_limit TO {APP_ROLE}; {grants}
                 ALTER DEFAULT PRIVILEGES IN SCHEMA public GRANT ALL ON TABLES TO {APP_ROLE};
                 ALTER DEFAULT PRIVILEGES IN SCHEMA public GRANT ALL ON SEQUENCES TO {APP_ROLE};"
            );
            sqlx::raw_sql(AssertSqlSafe(sql)).execute(&mut conn).await.expect("a role");
            conn.close().await.expect("close"); // A database with sessions cannot be copied.
            name
        };
        let mut database = Self::connect(create(MIGRATED.get_or_init(migrate).await).await).await;
        if !pooler::is_asked_for() {
            let options = (*database.pool.connect_options()).clone().options([("role", APP_ROLE)]);
            database.app = PgPoolOptions::new().max_connections(16).connect_with(options).await.expect("connect");
        }
        database
    }

    pub async fn empty() -> Self {
        let database = Self::connect(create("template0").await).await;
        secure(&mut database.pool.acquire().await.expect("a connection")).await;
        database
    }

    async fn connect(name: String) -> Self {
        let url = with_database(server_url(), &name);
        let pool = Self::pool(&url, 16).await;
        let app_url = app_url(&url);
        let app = if app_url == url { pool.clone() } else { Self::pool(&app_url, 16).await };
        Self { name, url, pool, app, app_url }
    }

    /// The default configuration, or one that works with a pooler if the suite runs behind one. Its deadline is long: a test may hold
    /// a lock for seconds on a busy machine, and no call that waits for it is to be given up meanwhile.
    pub fn config() -> LimiterConfig {
        let mut config = LimiterConfig::default();
        config.retry.deadline = Duration::from_secs(30);
        config.named_statements = !pooler::is_asked_for();
        config
    }

    /// A limiter over the application's pool, with [`Self::config`].
    pub fn limiter(&self, limits: Limits) -> Limiter {
        Limiter::with_config(self.app.clone(), limits, Self::config())
    }

    /// A test clock that the application's limiters hear of at once: it knows them by the address that they connect to.
    #[cfg(feature = "testing")]
    pub async fn test_clock(&self) -> pg_limiter::testing::TestClock {
        let pool = if pooler::is_asked_for() { &self.app } else { &self.pool };
        let clock = pg_limiter::testing::TestClock::install(pool, &pg_limiter::Schema::default()).await;
        clock.expect("a test clock")
    }

    pub async fn pool(url: &str, connections: u32) -> PgPool {
        PgPoolOptions::new().max_connections(connections).connect(url).await.expect("connect to a database")
    }

    pub async fn rows(&self) -> i64 {
        sqlx::query_scalar("SELECT count(*) FROM rate_limit.rate_limits")
            .fetch_one(&self.pool)
            .await
            .expect("count the rows")
    }

    /// The number of rows, over all tables, that contain the text in any column.
    pub async fn rows_with(&self, text: &str) -> i64 {
        let tables: Vec<String> = sqlx::query_scalar(
            "SELECT c.oid::regclass::text FROM pg_class AS c WHERE c.relnamespace IN ('public'::regnamespace, 'rate_limit'::regnamespace) \
             AND c.relkind = 'r'",
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
             CREATE TRIGGER rival BEFORE INSERT OR UPDATE ON rate_limit.rate_limits FOR EACH ROW EXECUTE FUNCTION always_conflict()",
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
    /// Hundreds of databases would be gigabytes, in memory. On a private server the test does not wait for the end of its own: the
    /// server is removed as a whole.
    fn drop(&mut self) {
        let name = self.name.clone();
        let dropping = std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
            runtime.block_on(async {
                if citus::is_asked_for() {
                    citus::drop_database(&name).await;
                } else if let Ok(mut admin) = PgConnection::connect(server_url()).await {
                    let drop = format!("DROP DATABASE IF EXISTS {name} WITH (FORCE)");
                    let _ = sqlx::query(AssertSqlSafe(drop)).execute(&mut admin).await;
                }
            });
        });
        if !is_private() {
            let _ = dropping.join();
        }
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
