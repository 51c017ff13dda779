use std::sync::Arc;
use std::time::Duration;

use sqlx::{AssertSqlSafe, Connection, PgConnection, PgPool, Row};

use crate::error::{Engine, MigrationCause, classify_migration, sqlstate, without_keys};
use crate::migrate::drift::{Plan, drift, occupied};
use crate::migrate::functions::Function;
use crate::migrate::installed::{Installed, untrusted};
use crate::migrate::script::{CLAIM, CREATE_RECORDS, record_functions, record_migration};
use crate::migrate::{Drift, MigrateError};
use crate::retry::{Attempts, RetryPolicy};
use crate::sql::{Names, SCHEMA_VERSION, Schema, Sql, detect};

/// The key of the transaction's advisory lock: "pglimit" in ASCII.
const LOCK_KEY: i64 = 0x0070_676c_696d_6974;

/// Whatever the default: each statement has to see what the one before us has committed. Nor do the time limits count that are
/// meant for the application's statements; not all of them are known to every release.
const BEGIN: &str = "BEGIN ISOLATION LEVEL READ COMMITTED; \
                     SELECT pg_catalog.set_config(name, '0', true) FROM pg_catalog.pg_settings WHERE name IN \
                     ('statement_timeout', 'idle_in_transaction_session_timeout', 'transaction_timeout')";

/// invalid_function_definition: CREATE OR REPLACE cannot change what a function returns.
const OTHER_RESULT: &str = "42P13";

/// The settings of every migration. A statement that waits for a lock makes others wait behind it, so it gives up soon and is retried.
/// The bodies of functions are not checked when they are created: that would lock the tables that they name.
const SETTINGS: [(&str, &str); 3] =
    [("lock_timeout", "1s"), ("check_function_bodies", "off"), ("search_path", "pg_catalog, pg_temp")];

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
    /// The signatures of the functions that were created or replaced just now.
    pub functions: Vec<&'static str>,
    /// The functions among them that were changed by hand since a release had created them. Each is logged as a warning before
    /// it is replaced.
    pub changed_by_hand: Vec<&'static str>,
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
        let engine = self.detect(pool).await.map_err(|failure| self.told(failure))?;
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
    /// that automatically. [`MigrateError::Busy`] also if a lock on a table is not free within a second.
    ///
    /// # In a transaction
    /// What was migrated is there when the caller commits. An advisory lock is held until then.
    ///
    /// # Cancel safety
    /// Roll the transaction back: a statement may still run on the server.
    pub async fn run_on(&self, connection: &mut PgConnection) -> Result<MigrateReport, MigrateError> {
        self.nested(connection).await.map_err(|failure| self.told(failure))
    }

    /// Returns how the database differs from this release: empty if there is nothing to do and nothing to look at. Objects of a
    /// newer release do not count. It writes nothing, and needs no privileges.
    ///
    /// # Errors
    /// [`MigrateError`].
    ///
    /// # Cancel safety
    /// Safe.
    ///
    /// # In a transaction
    /// In one of its own, which is rolled back; [`check_on`](Self::check_on) is for the caller's.
    pub async fn check(&self, pool: &PgPool) -> Result<Vec<Drift>, MigrateError> {
        let begun = pool.begin_with(BEGIN).await;
        let mut tx = begun.map_err(|error| self.told(error.into()))?;
        let found = self.check_on(&mut tx).await;
        let _ = tx.rollback().await; // Nothing was written in it.
        found
    }

    /// The same on this connection.
    ///
    /// # Errors
    /// [`MigrateError`].
    ///
    /// # Cancel safety
    /// Roll the transaction back: a statement may still run on the server.
    ///
    /// # In a transaction
    /// It sees what this one has done, and keeps nothing locked.
    pub async fn check_on(&self, connection: &mut PgConnection) -> Result<Vec<Drift>, MigrateError> {
        self.compare(connection).await.map_err(|error| self.told(error.into()))
    }

    async fn compare(&self, connection: &mut PgConnection) -> Result<Vec<Drift>, sqlx::Error> {
        let engine = self.engine_of(connection).await?;
        Ok(drift(&Installed::read(connection, &self.schema).await?, &self.schema, engine))
    }

    pub(super) async fn engine_of(&self, connection: &mut PgConnection) -> Result<Engine, sqlx::Error> {
        match self.engine {
            Some(engine) => Ok(engine),
            None => detect(connection).await,
        }
    }

    async fn detect(&self, pool: &PgPool) -> Result<Engine, Failure> {
        Ok(self.engine_of(&mut *pool.acquire().await?).await?)
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
        let before = exchange(conn, SETTINGS.map(|(_, value)| value)).await?;
        if locking {
            once("SELECT pg_catalog.pg_advisory_xact_lock($1)").query().bind(LOCK_KEY).execute(&mut *conn).await?;
        }
        let report = self.bring_up_to_date(conn).await?;
        exchange(conn, before.each_ref().map(String::as_str)).await?;
        Ok(report)
    }

    async fn bring_up_to_date(&self, conn: &mut PgConnection) -> Result<MigrateReport, Failure> {
        let (installed, plan) = self.plan(conn).await?;
        if plan.is_empty() {
            return Ok(report(&installed, &plan, Vec::new()));
        }
        for sql in self.preparations(&installed) {
            execute(conn, sql).await?;
        }
        let mut applied = Vec::new();
        for migration in &plan.migrations {
            let inserted = execute(conn, record_migration(&self.schema, migration)).await?;
            if inserted == 1 {
                execute(conn, migration.sql.clone()).await?;
                applied.push(migration.version);
            }
        }
        for function in &plan.functions {
            self.put(conn, function, &installed).await?;
        }
        for sql in self.claims(&plan) {
            execute(conn, sql).await?;
        }
        // Another role may have created an object since the first look: then its privileges are not ours.
        self.trust(untrusted(conn, &self.schema).await?)?;
        Ok(report(&installed, &plan, applied))
    }

    /// Reads what is installed, and plans the work.
    pub(super) async fn plan(&self, conn: &mut PgConnection) -> Result<(Installed, Plan), Failure> {
        let installed = Installed::read(conn, &self.schema).await?;
        let newest = installed.applied.iter().filter(|applied| applied.breaking).map(|applied| applied.version).max();
        if let Some(found) = newest.filter(|version| *version > SCHEMA_VERSION) {
            return Err(Failure::TooNew(found));
        }
        let plan = Plan::of(&installed, &self.schema, self.engine_of(conn).await?);
        if plan.is_empty() {
            return Ok((installed, plan));
        }
        self.trust(untrusted(conn, &self.schema).await?)?;
        if let Some(table) = occupied(&installed) {
            return Err(Failure::Occupied(table));
        }
        for signature in &plan.changed {
            tracing::warn!(target: "pg_limiter", schema = %self.schema, signature, "replacing a function that was changed by hand");
        }
        Ok((installed, plan))
    }

    /// Creates or replaces a function. One of a release that did not record its functions may return something else: it is
    /// dropped, and its privileges are granted again.
    async fn put(
        &self,
        conn: &mut PgConnection,
        function: &Function,
        installed: &Installed,
    ) -> Result<(), sqlx::Error> {
        let signature = function.signature;
        let is_recorded = installed.records.get(signature).is_some_and(|record| record.sha256.is_some());
        // A function of this name where nothing was migrated is the application's.
        let is_ours = !is_recorded && !installed.applied.is_empty();
        if !is_ours || installed.definition("function", signature).is_none() {
            return execute(conn, function.sql.clone()).await.map(|_| ());
        }
        execute(conn, "SAVEPOINT rate_limits_function".to_owned()).await?;
        match execute(conn, function.sql.clone()).await {
            Err(error) if sqlstate(&error) == OTHER_RESULT => {}
            result => {
                result?;
                return execute(conn, "RELEASE SAVEPOINT rate_limits_function".to_owned()).await.map(|_| ());
            }
        }
        let named = format!("{}.{signature}", self.schema.quoted());
        execute(conn, format!("ROLLBACK TO SAVEPOINT rate_limits_function; DROP FUNCTION {named}")).await?;
        execute(conn, function.sql.clone()).await?;
        execute(conn, format!("REVOKE ALL ON FUNCTION {named} FROM PUBLIC")).await?;
        for (_, grant) in installed.grants.iter().filter(|(object, _)| object == signature) {
            if let Some((role, "EXECUTE")) = grant.rsplit_once(": ") {
                execute(conn, format!("GRANT EXECUTE ON FUNCTION {named} TO {role}")).await?;
            }
        }
        execute(conn, "RELEASE SAVEPOINT rate_limits_function".to_owned()).await.map(|_| ())
    }

    pub(super) fn trust(&self, problems: Vec<String>) -> Result<(), Failure> {
        if problems.is_empty() { Ok(()) } else { Err(Failure::Untrusted(problems)) }
    }

    /// Creates the schema, and the tables of what was applied.
    pub(super) fn preparations(&self, installed: &Installed) -> Vec<String> {
        let history = self.schema.render(CREATE_RECORDS);
        // CREATE SCHEMA IF NOT EXISTS wants a privilege even where there is nothing to create.
        if installed.has_schema {
            vec![history]
        } else {
            vec![format!("CREATE SCHEMA {}", self.schema.quoted()), history]
        }
    }

    /// Takes new objects away from everyone but their owner, and records what was created or replaced.
    pub(super) fn claims(&self, plan: &Plan) -> Vec<String> {
        let mut claims = vec![self.schema.render(CLAIM)];
        if !plan.recorded.is_empty() {
            claims.push(record_functions(&self.schema, &plan.recorded));
        }
        claims
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
            Failure::TooNew(found) => MigrateError::SchemaTooNew { schema, found, known: SCHEMA_VERSION },
            Failure::Occupied(table) => MigrateError::Occupied { schema, table },
            Failure::Untrusted(problems) => MigrateError::Untrusted { schema, problems },
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
    Occupied(String),
    Untrusted(Vec<String>),
    Driver(sqlx::Error),
}

impl Failure {
    fn cause(&self) -> MigrationCause {
        match self {
            Self::Driver(error) => classify_migration(error),
            Self::TooNew(_) | Self::Occupied(_) | Self::Untrusted(_) => MigrationCause::Refused,
        }
    }
}

impl From<sqlx::Error> for Failure {
    fn from(error: sqlx::Error) -> Self {
        Self::Driver(error)
    }
}

pub(super) fn report(installed: &Installed, plan: &Plan, applied: Vec<i32>) -> MigrateReport {
    let version = applied.iter().copied().max().unwrap_or_default().max(installed.version());
    let functions = plan.functions.iter().map(|function| function.signature).collect();
    MigrateReport { version, applied, functions, changed_by_hand: plan.changed.clone() }
}

/// Returns how many rows were inserted.
pub(super) async fn execute(conn: &mut PgConnection, sql: String) -> Result<u64, sqlx::Error> {
    sqlx::raw_sql(AssertSqlSafe(sql)).execute(conn).await.map(|done| done.rows_affected())
}

/// Sets the parameters of [`SETTINGS`] to these values, up to the end of the transaction, and returns what they were.
async fn exchange(conn: &mut PgConnection, values: [&str; 3]) -> Result<[String; 3], sqlx::Error> {
    let [first, second, third] = SETTINGS.map(|(name, _)| name);
    let current =
        once("SELECT pg_catalog.current_setting($1), pg_catalog.current_setting($2), pg_catalog.current_setting($3)");
    let row = current.query().bind(first).bind(second).bind(third).fetch_one(&mut *conn).await?;
    let before = [row.try_get(0)?, row.try_get(1)?, row.try_get(2)?];
    for ((name, _), value) in SETTINGS.iter().zip(values) {
        once("SELECT pg_catalog.set_config($1, $2, true)").query().bind(name).bind(value).execute(&mut *conn).await?;
    }
    Ok(before)
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
