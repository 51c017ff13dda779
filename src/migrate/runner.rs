use std::sync::Arc;
use std::time::Duration;

use sqlx::{AssertSqlSafe, Connection, PgConnection, PgPool, Row};

use crate::error::{Engine, MigrationCause, classify_migration, without_keys};
use crate::migrate::MigrateError;
use crate::migrate::migrations::{Migration, NEWEST, migrations};
use crate::retry::{Attempts, RetryPolicy};
use crate::sql::{Names, Schema, Sql, detect};

/// The key of the transaction's advisory lock: "pglimit" in ASCII.
const LOCK_KEY: i64 = 0x0070_676c_696d_6974;

/// Whatever the default: each statement has to see what the one before us has committed. Nor do the time limits count that are
/// meant for the application's statements; not all of them are known to every release.
const BEGIN: &str = "BEGIN ISOLATION LEVEL READ COMMITTED; SET LOCAL lock_timeout = '10s'; \
                     SELECT pg_catalog.set_config(name, '0', true) FROM pg_catalog.pg_settings WHERE name IN \
                     ('statement_timeout', 'idle_in_transaction_session_timeout', 'transaction_timeout')";

/// Brings the schema `public` up to date. See [`Migrator`] for another one.
///
/// # Errors
/// [`MigrateError`]; nothing stays half-done where the engine has transactional DDL.
///
/// # Cancel safety
/// Dropping the future rolls back.
///
/// # In a transaction
/// In one of its own; [`migrate_on`] is for the caller's.
pub async fn migrate(pool: &PgPool) -> Result<MigrateReport, MigrateError> {
    Migrator::default().run(pool).await
}

/// The same on this connection, within the caller's transaction if there is one.
///
/// # Errors
/// [`MigrateError`].
///
/// # In a transaction
/// What was migrated is there when the caller commits. An advisory lock is held until then.
///
/// # Cancel safety
/// Roll the transaction back: a statement may still run on the server.
pub async fn migrate_on(connection: &mut PgConnection) -> Result<MigrateReport, MigrateError> {
    Migrator::default().run_on(connection).await
}

/// What [`Migrator::run`] did.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct MigrateReport {
    /// The schema's version now.
    pub version: i32,
    /// The versions that were applied just now.
    pub applied: Vec<i32>,
}

/// Brings a schema up to date.
///
/// ```no_run
/// # async fn f(pool: sqlx::PgPool) -> Result<(), Box<dyn std::error::Error>> {
/// use pg_limiter::Schema;
/// use pg_limiter::migrate::Migrator;
/// Migrator::new(Schema::new("limits")?).run(&pool).await?;
/// # Ok(()) }
/// ```
#[derive(Clone, Debug, Default)]
pub struct Migrator {
    pub(super) schema: Schema,
    engine: Option<Engine>,
}

impl Migrator {
    /// For this schema, which is created if it is not there.
    pub const fn new(schema: Schema) -> Self {
        Self { schema, engine: None }
    }

    /// On this engine; it is asked of the database otherwise. On [`Engine::Yugabyte`], whose schema changes are not
    /// transactional, [`run`](Self::run) goes statement by statement, each of which may be run again.
    #[must_use]
    pub const fn on(mut self, engine: Engine) -> Self {
        self.engine = Some(engine);
        self
    }

    /// Brings the schema up to date in a transaction of its own, and waits for other migrators. On YugabyteDB, where that
    /// is not to be had, over two connections of its own, one of which holds a row locked for as long as the other one works:
    /// what fails half-way is finished by the next run.
    ///
    /// # Errors
    /// [`MigrateError`].
    ///
    /// # Cancel safety
    /// Dropping the future rolls back.
    ///
    /// # In a transaction
    /// In one of its own; [`run_on`](Self::run_on) is for the caller's.
    pub async fn run(&self, pool: &PgPool) -> Result<MigrateReport, MigrateError> {
        let mut policy = RetryPolicy {
            max_attempts: 100,
            initial: Duration::from_millis(10),
            max: Duration::from_millis(250),
            deadline: Duration::from_secs(60),
            ..RetryPolicy::default()
        };
        let engine = match self.engine {
            Some(engine) => engine,
            None => self.detect(pool).await.map_err(|failure| self.told(failure))?,
        };
        if engine == Engine::Yugabyte {
            policy.deadline = Duration::from_secs(900); // Each change of the schema takes about a second there.
        }
        let mut attempts = Attempts::new(&policy);
        let mut locking = true;
        loop {
            let attempt = match engine {
                Engine::Yugabyte => self.stepwise(pool).await,
                Engine::PostgreSql => self.attempt(pool, locking).await,
            };
            let failure = match attempt {
                Ok(report) => return Ok(report),
                Err(failure) => failure,
            };
            match failure.cause() {
                MigrationCause::NoAdvisoryLocks if locking => {
                    locking = false;
                    continue;
                }
                MigrationCause::Clash => {}
                _ => return Err(self.told(failure)),
            }
            match attempts.next_delay() {
                Some(delay) => tokio::time::sleep(delay).await,
                None => return Err(self.told(failure)),
            }
        }
    }

    /// Brings the schema up to date on this connection, within the caller's transaction if there is one.
    ///
    /// # Errors
    /// [`MigrateError`]. Two of these at once may make one of them fail with [`MigrateError::Busy`] on an engine without
    /// advisory locks (YugabyteDB up to 2024.2), and above READ COMMITTED: run it again then. [`run`](Self::run) does
    /// that by itself.
    ///
    /// # In a transaction
    /// What was migrated is there when the caller commits. An advisory lock is held until then.
    ///
    /// # Cancel safety
    /// Roll the transaction back: a statement may still run on the server.
    pub async fn run_on(&self, connection: &mut PgConnection) -> Result<MigrateReport, MigrateError> {
        self.nested(connection).await.map_err(|failure| self.told(failure))
    }

    async fn detect(&self, pool: &PgPool) -> Result<Engine, Failure> {
        let mut connection = pool.acquire().await?;
        Ok(detect(&mut connection).await?)
    }

    async fn nested(&self, connection: &mut PgConnection) -> Result<MigrateReport, Failure> {
        // Asked, not tried: a failed statement would spoil the caller's transaction.
        let locking = has_advisory_locks(connection).await?;
        if !connection.is_in_transaction() && in_raw_transaction(connection).await? {
            // The driver does not know of a BEGIN that was sent as a statement, and would commit what it began.
            sqlx::raw_sql("SAVEPOINT rate_limits_migration").execute(&mut *connection).await?;
            let report = self.apply(connection, locking).await?;
            sqlx::raw_sql("RELEASE SAVEPOINT rate_limits_migration").execute(connection).await?;
            return Ok(report);
        }
        let mut tx = connection.begin().await?;
        let report = self.apply(&mut tx, locking).await?;
        tx.commit().await?;
        Ok(report)
    }

    async fn attempt(&self, pool: &PgPool, locking: bool) -> Result<MigrateReport, Failure> {
        let mut tx = pool.begin_with(BEGIN).await?;
        match self.apply(&mut tx, locking).await {
            Ok(report) => tx.commit().await.map(|()| report).map_err(Failure::from),
            Err(failure) => {
                // What failed first is what the caller has to know.
                let _ = tx.rollback().await;
                Err(failure)
            }
        }
    }

    /// In a transaction: the lock goes with it, whatever happens. The row of a version is written first, so that
    /// without advisory locks a second migrator waits for it.
    async fn apply(&self, conn: &mut PgConnection, locking: bool) -> Result<MigrateReport, Failure> {
        if locking {
            once("SELECT pg_catalog.pg_advisory_xact_lock($1)").query().bind(LOCK_KEY).execute(&mut *conn).await?;
        }
        self.prepare(conn).await?;
        let found = self.found(conn).await?;
        let quoted = self.schema.quoted();
        let mut applied = Vec::new();
        for Migration { version, name, sql } in migrations(&self.schema) {
            if version <= found {
                continue;
            }
            let row = format!("INSERT INTO {quoted}.rate_limits_migrations (version, name) VALUES ($1, $2)");
            once(row).query().bind(version).bind(name).execute(&mut *conn).await?;
            execute(conn, sql).await?;
            applied.push(version);
        }
        Ok(MigrateReport { version: NEWEST, applied })
    }

    /// The schema and the table of what was applied, if they are not there.
    pub(super) async fn prepare(&self, conn: &mut PgConnection) -> Result<(), Failure> {
        let quoted = self.schema.quoted();
        // Asked first: CREATE SCHEMA IF NOT EXISTS wants a privilege even where there is nothing to create.
        let there: bool = once("SELECT EXISTS (SELECT FROM pg_catalog.pg_namespace WHERE nspname = $1)")
            .scalar()
            .bind(self.schema.name())
            .fetch_one(&mut *conn)
            .await?;
        if !there {
            execute(conn, format!("CREATE SCHEMA {quoted}")).await?;
        }
        let history: Option<String> = once("SELECT pg_catalog.to_regclass($1)::text")
            .scalar()
            .bind(format!("{quoted}.rate_limits_migrations"))
            .fetch_one(&mut *conn)
            .await?;
        if history.is_none() {
            self.check_vacant(conn).await?;
            execute(
                conn,
                format!(
                    "CREATE TABLE {quoted}.rate_limits_migrations (\
                       version integer PRIMARY KEY, \
                       name text NOT NULL, \
                       applied_at timestamp with time zone NOT NULL DEFAULT pg_catalog.now())"
                ),
            )
            .await?;
            execute(conn, format!("GRANT SELECT ON {quoted}.rate_limits_migrations TO PUBLIC")).await?;
        }
        Ok(())
    }

    /// The version that was found.
    pub(super) async fn found(&self, conn: &mut PgConnection) -> Result<i32, Failure> {
        let quoted = self.schema.quoted();
        let latest = format!("SELECT coalesce(max(version), 0) FROM {quoted}.rate_limits_migrations");
        let found: i32 = once(latest).scalar().fetch_one(&mut *conn).await?;
        if found > NEWEST {
            return Err(Failure::TooNew(found));
        }
        Ok(found)
    }

    /// A table `rate_limits` may be there already, if the SQL was printed and run by another tool: then it is taken over.
    async fn check_vacant(&self, conn: &mut PgConnection) -> Result<(), Failure> {
        let columns: Option<i64> = once(
            "SELECT count(*) FILTER (WHERE c.relkind = 'r' AND a.attname IN ('name', 'key', 'shard', 'shards', \
             'value', 'ts', 'idle_at', 'earlier_counts')) \
             FROM pg_catalog.pg_class AS c LEFT JOIN pg_catalog.pg_attribute AS a ON a.attrelid = c.oid \
             WHERE c.oid = pg_catalog.to_regclass($1) GROUP BY c.oid",
        )
        .scalar()
        .bind(format!("{}.rate_limits", self.schema.quoted()))
        .fetch_optional(conn)
        .await?;
        if columns.is_some_and(|columns| columns != 8) { Err(Failure::Occupied) } else { Ok(()) }
    }

    fn told(&self, failure: Failure) -> MigrateError {
        let schema = self.schema.to_string();
        let cause = failure.cause();
        // A statement that cannot change a table may tell of a row of it.
        let failure = match failure {
            Failure::Driver(source) => Failure::Driver(without_keys(source)),
            other => other,
        };
        match failure {
            Failure::TooNew(found) => MigrateError::SchemaTooNew { schema, found, known: NEWEST },
            Failure::Occupied => MigrateError::Occupied { schema, table: "rate_limits" },
            Failure::Driver(source) => match cause {
                MigrationCause::Clash => MigrateError::Busy { schema, source },
                MigrationCause::ReadOnly => MigrateError::ReadOnly { schema, source },
                MigrationCause::Privilege => MigrateError::Privilege { schema, source },
                MigrationCause::NoAdvisoryLocks | MigrationCause::Refused => MigrateError::Database { schema, source },
            },
        }
    }
}

pub(super) enum Failure {
    TooNew(i32),
    Occupied,
    Driver(sqlx::Error),
}

impl Failure {
    fn cause(&self) -> MigrationCause {
        match self {
            Self::Driver(error) => classify_migration(error),
            Self::TooNew(_) | Self::Occupied => MigrationCause::Refused,
        }
    }
}

impl From<sqlx::Error> for Failure {
    fn from(error: sqlx::Error) -> Self {
        Self::Driver(error)
    }
}

pub(super) async fn execute(conn: &mut PgConnection, sql: String) -> Result<(), sqlx::Error> {
    sqlx::raw_sql(AssertSqlSafe(sql)).execute(conn).await.map(|_| ())
}

/// In a simple query outside of a block, the transaction begins with the statement.
async fn in_raw_transaction(conn: &mut PgConnection) -> Result<bool, sqlx::Error> {
    let sql = "SELECT pg_catalog.now() <> pg_catalog.statement_timestamp()";
    sqlx::raw_sql(sql).fetch_one(conn).await?.try_get(0)
}

/// YugabyteDB has the function from the start, and the locks since 2025.1.
async fn has_advisory_locks(conn: &mut PgConnection) -> Result<bool, sqlx::Error> {
    // There may be no transaction yet: in one message, then.
    sqlx::raw_sql(
        "SELECT pg_catalog.to_regprocedure('pg_catalog.pg_advisory_xact_lock(bigint)') IS NOT NULL \
         AND pg_catalog.version() !~ '-YB-(2024|2\\.)'",
    )
    .fetch_one(conn)
    .await?
    .try_get(0)
}

/// Sent once: a name for it would only be left behind, and be in the way of others where sessions are shared.
pub(super) fn once(text: impl Into<Arc<str>>) -> Sql {
    Sql::new(text, &Names::new(false))
}
