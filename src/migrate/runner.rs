use std::time::Duration;

use sqlx::{Connection, PgConnection, PgPool, Row};

use crate::error::{Engine, MigrationCause, with_hint};
use crate::migrate::drift::{Plan, drift, occupied};
use crate::migrate::error::REMOVE;
use crate::migrate::failure::Failure;
use crate::migrate::functions::functions;
use crate::migrate::installed::{Installed, Misowned, Problem};
use crate::migrate::names::install;
use crate::migrate::owners::only_owner;
use crate::migrate::read::untrusted;
use crate::migrate::roles::{Until, become_owner, lacking, set_role};
use crate::migrate::script::{CLAIM, CLOSE, CREATE_RECORDS, CREATE_SCHEMA, record_functions, record_migration};
use crate::migrate::unnamed::{execute, unnamed};
use crate::migrate::{Drift, MigrateError};
use crate::retry::{Attempts, RetryPolicy};
use crate::sql::{PooledConnection, SCHEMA_VERSION, Schema, detect};

/// The key of the transaction's advisory lock: "pglimit" in ASCII.
pub(crate) const LOCK_KEY: i64 = 0x0070_676c_696d_6974;

/// Sets READ COMMITTED, whatever the default: each statement must see what earlier migrators have committed. Turns off the
/// timeouts, which are meant for the application's statements. Not every PostgreSQL version has all of them.
const BEGIN: &str = "BEGIN ISOLATION LEVEL READ COMMITTED; \
                     SELECT pg_catalog.set_config(name, '0', true) FROM pg_catalog.pg_settings WHERE name IN \
                     ('statement_timeout', 'idle_in_transaction_session_timeout', 'transaction_timeout')";

const SAVEPOINT: &str = "SAVEPOINT rate_limits_migration";
const ROLLBACK_TO_SAVEPOINT: &str =
    "ROLLBACK TO SAVEPOINT rate_limits_migration; RELEASE SAVEPOINT rate_limits_migration";

/// Distributes the tables on Citus.
const DISTRIBUTE: &str = include_str!("../../sql/engines/distribute.sql");

/// Lets the nodes of Citus run functions.
const DELEGATE: &str = include_str!("../../sql/engines/delegate.sql");

/// Makes Citus send the statements of the transaction to one node after the other, so that tables and functions can change in
/// one transaction. It reports functions of the queue that stay on the coordinator as warnings.
const SEQUENTIAL: &str =
    "SET LOCAL citus.multi_shard_modify_mode = 'sequential'; SET LOCAL client_min_messages = 'error'";

/// The settings of every migration and of its check. A statement that waits for a lock blocks other statements behind it, so it
/// times out soon and is retried. Function bodies are not checked on creation, because this would lock the tables that they name.
/// The other settings determine how the server prints definitions, and which functions and operators a name means.
pub(super) const SETTINGS: [(&str, &str); 5] = [
    ("lock_timeout", "1s"),
    ("check_function_bodies", "off"),
    ("quote_all_identifiers", "off"),
    ("intervalstyle", "postgres"),
    ("search_path", "pg_catalog, pg_temp"),
];

/// Brings the schema `rate_limit` up to date. See [`Migrator`] for another one.
///
/// # Errors
/// [`MigrateError`]. If the engine has transactional DDL, a failed run changes nothing.
///
/// # Cancel safety
/// Dropping the future rolls back.
///
/// # In a transaction
/// It uses its own transaction. Use [`migrate_on`] in the caller's.
pub async fn migrate(pool: &PgPool) -> Result<MigrateReport, MigrateError> {
    Migrator::default().run(pool).await
}

/// Brings the schema `rate_limit` up to date on this connection, within the caller's transaction if there is one.
///
/// # Errors
/// [`MigrateError`].
///
/// # In a transaction
/// The migration takes effect when the caller commits. An advisory lock is held until then.
///
/// # Cancel safety
/// Roll the transaction back: a statement may still run on the server.
pub async fn migrate_on(connection: &mut PgConnection) -> Result<MigrateReport, MigrateError> {
    Migrator::default().run_on(connection).await
}

/// The result of [`Migrator::run`].
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct MigrateReport {
    /// The schema's version after the run.
    pub version: i32,
    /// The names of the migrations that the run applied.
    pub applied: Vec<&'static str>,
    /// The signatures of the functions that the run created or replaced.
    pub functions: Vec<&'static str>,
    /// Those of the functions that were changed by hand after a release created them. Each is logged as a warning before it is
    /// replaced.
    pub changed_by_hand: Vec<&'static str>,
}

/// Creates the limiter's tables and functions in a schema, or brings them up to date.
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
    distributes: bool,
    without_queue: bool,
}

impl Migrator {
    /// Creates a migrator for this schema. A run creates the schema if it does not exist.
    pub const fn new(schema: Schema) -> Self {
        Self { schema, engine: None, distributes: false, without_queue: false }
    }

    /// Sets the engine. By default, it is read from the database. On [`Engine::Yugabyte`], schema changes are not
    /// transactional, so [`run`](Self::run) runs statement by statement. Each statement can be repeated.
    #[must_use]
    pub const fn engine(mut self, engine: Engine) -> Self {
        self.engine = Some(engine);
        self
    }

    /// Sets whether a run distributes the tables over the nodes of a Citus cluster (default: no). Existing buckets move with their
    /// tokens, while calls wait. Later runs keep the tables distributed, with or without this setting. The extension has to be
    /// installed, and the connection has to lead to the coordinator.
    ///
    /// ```no_run
    /// # async fn f(pool: sqlx::PgPool) -> Result<(), pg_limiter::migrate::MigrateError> {
    /// pg_limiter::migrate::Migrator::default().distributed(true).run(&pool).await?;
    /// # Ok(()) }
    /// ```
    #[must_use]
    pub const fn distributed(mut self, distributes: bool) -> Self {
        self.distributes = distributes;
        self
    }

    /// Sets whether a run leaves out the queue: its tables, functions and views (default: no). A later run without this setting
    /// adds the queue. If the queue is already installed, it stays, and a run keeps it up to date.
    ///
    /// ```no_run
    /// # async fn f(pool: sqlx::PgPool) -> Result<(), pg_limiter::migrate::MigrateError> {
    /// pg_limiter::migrate::Migrator::default().without_queue(true).run(&pool).await?;
    /// # Ok(()) }
    /// ```
    #[must_use]
    pub const fn without_queue(mut self, without_queue: bool) -> Self {
        self.without_queue = without_queue;
        self
    }

    /// Brings the schema up to date in its own transaction, and waits for other migrators. YugabyteDB has no transactional
    /// schema changes. There it opens two connections, and one keeps a row locked while the other migrates. If a run fails
    /// half-way, the next run finishes the work.
    ///
    /// # Errors
    /// [`MigrateError`].
    ///
    /// # Cancel safety
    /// Dropping the future rolls back.
    ///
    /// # In a transaction
    /// It uses its own transaction. Use [`run_on`](Self::run_on) in the caller's.
    pub async fn run(&self, pool: &PgPool) -> Result<MigrateReport, MigrateError> {
        let mut policy = RetryPolicy {
            max_attempts: 100,
            initial: Duration::from_millis(10),
            max: Duration::from_millis(250),
            deadline: Duration::from_secs(60),
            ..RetryPolicy::default()
        };
        let engine = self.detect(pool).await.map_err(|failure| self.error(failure))?;
        if engine == Engine::Yugabyte {
            policy.deadline = Duration::from_secs(900); // Each change of the schema takes about a second there.
        }
        let mut attempts = Attempts::new(&policy);
        let mut locking = true;
        loop {
            let attempt = match engine {
                Engine::Yugabyte => self.stepwise(pool).await,
                Engine::PostgreSql | Engine::Citus => self.attempt(pool, locking).await,
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
                _ => return Err(self.error(failure)),
            }
            match attempts.next_delay() {
                Some(delay) => tokio::time::sleep(delay).await,
                None => return Err(self.error(failure)),
            }
        }
    }

    /// Brings the schema up to date on this connection, within the caller's transaction if there is one.
    ///
    /// # Errors
    /// [`MigrateError`]. If two calls run at once, one can fail with [`MigrateError::Busy`] on an engine without advisory locks
    /// (YugabyteDB up to 2024.2), and at an isolation level above READ COMMITTED. Then run it again; [`run`](Self::run) does so
    /// automatically. [`MigrateError::Busy`] is also returned if a lock on a table is not free within a second.
    ///
    /// # In a transaction
    /// The migration takes effect when the caller commits. An advisory lock is held until then.
    ///
    /// # Cancel safety
    /// Roll the transaction back: a statement may still run on the server.
    pub async fn run_on(&self, connection: &mut PgConnection) -> Result<MigrateReport, MigrateError> {
        self.nested(connection).await.map_err(|failure| self.error(failure))
    }

    /// Returns the differences between the database and this release, empty if there are none. Objects of a newer release do not
    /// count. It writes nothing and needs no privileges.
    ///
    /// # Errors
    /// [`MigrateError`].
    ///
    /// # Cancel safety
    /// Safe.
    ///
    /// # In a transaction
    /// It uses its own transaction, and rolls it back. Use [`check_on`](Self::check_on) in the caller's.
    pub async fn check(&self, pool: &PgPool) -> Result<Vec<Drift>, MigrateError> {
        let checking = async {
            let mut connection = PooledConnection::acquire(pool).await?;
            let mut tx = connection.begin_with(BEGIN).await?;
            let found = self.compare(&mut tx).await;
            if tx.rollback().await.is_ok() {
                connection.release(); // The transaction wrote nothing.
            }
            found
        };
        checking.await.map_err(|error| self.error(error.into()))
    }

    /// Like [`check`](Self::check), on this connection.
    ///
    /// # Errors
    /// [`MigrateError`].
    ///
    /// # Cancel safety
    /// Roll the transaction back: a statement may still run on the server.
    ///
    /// # In a transaction
    /// It sees the transaction's own changes, and locks no rows.
    pub async fn check_on(&self, connection: &mut PgConnection) -> Result<Vec<Drift>, MigrateError> {
        self.compare(connection).await.map_err(|error| self.error(error.into()))
    }

    /// Compares with the settings and the role of a migration. The rollback restores those of the caller.
    async fn compare(&self, connection: &mut PgConnection) -> Result<Vec<Drift>, sqlx::Error> {
        if !connection.is_in_transaction() && in_raw_transaction(connection).await? {
            sqlx::raw_sql(SAVEPOINT).execute(&mut *connection).await?;
            let found = self.find(connection).await;
            sqlx::raw_sql(ROLLBACK_TO_SAVEPOINT).execute(connection).await?;
            return found;
        }
        let mut tx = connection.begin().await?;
        let found = self.find(&mut tx).await?;
        tx.rollback().await?;
        Ok(found)
    }

    async fn find(&self, conn: &mut PgConnection) -> Result<Vec<Drift>, sqlx::Error> {
        exchange(conn, &SETTINGS.map(|(_, value)| value)).await?;
        become_owner(conn, &self.schema, Until::Commit).await?;
        let engine = self.engine_of(conn).await?;
        Ok(drift(&Installed::read(conn, &self.schema).await?, &self.schema, engine, self.without_queue))
    }

    pub(super) async fn engine_of(&self, connection: &mut PgConnection) -> Result<Engine, sqlx::Error> {
        match self.engine {
            Some(engine) => Ok(engine),
            None => detect(connection, &self.schema).await,
        }
    }

    async fn is_to_be_distributed(&self, conn: &mut PgConnection) -> Result<bool, sqlx::Error> {
        Ok(self.distributes || self.engine_of(conn).await? == Engine::Citus)
    }

    async fn detect(&self, pool: &PgPool) -> Result<Engine, Failure> {
        Ok(self.engine_of(&mut *pool.acquire().await?).await?)
    }

    async fn nested(&self, connection: &mut PgConnection) -> Result<MigrateReport, Failure> {
        // Check first instead of trying: a failed statement would abort the caller's transaction.
        let locking = has_advisory_locks(connection).await?;
        if !connection.is_in_transaction() && in_raw_transaction(connection).await? {
            // The driver does not know of a BEGIN that was sent as a statement, and its commit would end that transaction.
            sqlx::raw_sql(SAVEPOINT).execute(&mut *connection).await?;
            let report = self.apply(connection, locking).await;
            // After a failure, no setting is left behind either.
            let end = match report {
                Ok(_) => "RELEASE SAVEPOINT rate_limits_migration",
                Err(_) => ROLLBACK_TO_SAVEPOINT,
            };
            let ended = sqlx::raw_sql(end).execute(connection).await;
            return report.and_then(|report| ended.map(|_| report).map_err(Failure::from));
        }
        let mut tx = connection.begin().await?;
        match self.apply(&mut tx, locking).await {
            Ok(report) => tx.commit().await.map(|()| report).map_err(Failure::from),
            Err(failure) => {
                // Now, and not when the connection is used next: the transaction holds locks. Return the first failure.
                let _ = tx.rollback().await;
                Err(failure)
            }
        }
    }

    async fn attempt(&self, pool: &PgPool, locking: bool) -> Result<MigrateReport, Failure> {
        let mut connection = PooledConnection::acquire(pool).await?;
        let mut tx = connection.begin_with(BEGIN).await?;
        let applied = self.apply(&mut tx, locking).await;
        // After a failure, return that, and not that of the rollback.
        let ended = if applied.is_ok() { tx.commit().await } else { tx.rollback().await };
        if ended.is_ok() {
            connection.release();
        }
        applied.and_then(|report| ended.map(|()| report).map_err(Failure::from))
    }

    /// Migrates within a transaction, whose end always releases the lock. The row of a version is written first, so that a
    /// second migrator waits for it on an engine without advisory locks.
    async fn apply(&self, conn: &mut PgConnection, locking: bool) -> Result<MigrateReport, Failure> {
        let before = exchange(conn, &SETTINGS.map(|(_, value)| value)).await?;
        if locking {
            unnamed("SELECT pg_catalog.pg_advisory_xact_lock($1)").query().bind(LOCK_KEY).execute(&mut *conn).await?;
        }
        let role = become_owner(conn, &self.schema, Until::Commit).await?;
        let report = self.bring_up_to_date(conn).await?;
        if let Some(role) = role {
            set_role(conn, &role, Until::Commit).await?;
        }
        exchange(conn, &before.iter().map(String::as_str).collect::<Vec<_>>()).await?;
        Ok(report)
    }

    async fn bring_up_to_date(&self, conn: &mut PgConnection) -> Result<MigrateReport, Failure> {
        let (installed, plan) = self.plan(conn).await?;
        if plan.is_empty() {
            return Ok(report(&installed, &plan, Vec::new()));
        }
        let distributed = self.is_to_be_distributed(conn).await?;
        if distributed {
            execute(conn, SEQUENTIAL.to_owned()).await?;
        }
        for sql in self.preparations(&installed, &plan) {
            execute(conn, sql).await?;
        }
        let mut applied = Vec::new();
        for migration in &plan.migrations {
            let inserted = execute(conn, record_migration(&self.schema, migration)).await?;
            if inserted == 1 {
                execute(conn, migration.sql.clone()).await?;
                applied.push(migration.name);
            }
        }
        if distributed {
            execute(conn, self.schema.render(DISTRIBUTE)).await?;
        }
        for function in &plan.functions {
            execute(conn, function.sql.clone()).await?;
        }
        if distributed {
            execute(conn, install(&self.schema, DELEGATE, plan.parts)).await?;
        }
        if let Some(sql) = self.removal(&plan) {
            execute(conn, sql).await?;
        }
        for sql in self.claims(&plan) {
            execute(conn, sql).await?;
        }
        // Check again: another role may have created an object since the first check.
        self.trust(untrusted(conn, &self.schema, plan.parts).await?)?;
        Ok(report(&installed, &plan, applied))
    }

    /// Reads the installed objects, and plans the work.
    pub(super) async fn plan(&self, conn: &mut PgConnection) -> Result<(Installed, Plan), Failure> {
        let installed = Installed::read(conn, &self.schema).await?;
        if !installed.is_readable()
            && installed.misowned.is_none()
            && let Some(lacking) = lacking(conn, &self.schema).await?
        {
            return Err(lacking);
        }
        let newest = installed.applied.iter().filter(|applied| applied.breaking).map(|applied| applied.version).max();
        if let Some(found) = newest.filter(|version| *version > SCHEMA_VERSION) {
            return Err(Failure::TooNew(found));
        }
        if let Some(misowned) = installed.misowned {
            return Err(Failure::Misowned(misowned));
        }
        let engine = self.engine_of(conn).await?;
        let mut plan = Plan::of(&installed, &self.schema, engine, self.without_queue);
        if self.distributes && !engine.is_distributed() {
            plan.functions = functions(&self.schema, plan.parts); // Each is sent to the nodes when it is created.
            plan.recorded.clone_from(&plan.functions);
        }
        if plan.is_empty() {
            // Their code runs in every call.
            self.trust(installed.untrusted.iter().filter(|one| one.statement.is_some()).cloned().collect())?;
            return Ok((installed, plan));
        }
        let problems = untrusted(conn, &self.schema, plan.parts).await?;
        if !installed.applied.is_empty()
            && let Some(owner) = only_owner(&installed, &self.schema)
            && installed.current().is_some_and(|(current, _)| current != owner)
        {
            return Err(Failure::NotOwner(owner)); // New objects would belong to another role than the others.
        }
        self.trust(problems)?;
        if let Some(lacking) = lacking(conn, &self.schema).await? {
            return Err(lacking);
        }
        if let Some(table) = occupied(&installed, &plan) {
            return Err(Failure::Occupied(table));
        }
        if plan.test_clock {
            tracing::warn!(target: "pg_limiter", schema = %self.schema, "removing the test clock");
        }
        if plan.closes_functions {
            tracing::warn!(target: "pg_limiter", schema = %self.schema, "revoking EXECUTE on functions from PUBLIC");
        }
        for signature in &plan.changed {
            tracing::warn!(target: "pg_limiter", schema = %self.schema, signature, "replacing a function that was changed by hand");
        }
        Ok((installed, plan))
    }

    pub(super) fn trust(&self, problems: Vec<Problem>) -> Result<(), Failure> {
        if problems.is_empty() {
            return Ok(());
        }
        let text = |problem: Problem| match problem.statement {
            Some(statement) => format!("{}{REMOVE}{statement}", problem.text),
            None => problem.text,
        };
        Err(Failure::Untrusted(problems.into_iter().map(text).collect()))
    }

    /// The SQL that creates the schema and the tables of records.
    pub(super) fn preparations(&self, installed: &Installed, plan: &Plan) -> Vec<String> {
        let history = install(&self.schema, CREATE_RECORDS, plan.parts);
        // CREATE SCHEMA IF NOT EXISTS requires the privilege even if the schema exists.
        if installed.has_schema { vec![history] } else { vec![self.schema.render(CREATE_SCHEMA), history] }
    }

    /// The SQL that removes what is left of a test clock, once its function is replaced.
    pub(super) fn removal(&self, plan: &Plan) -> Option<String> {
        plan.test_clock.then(|| format!("DROP SEQUENCE IF EXISTS {}._test_clock", self.schema.quoted()))
    }

    /// The SQL that revokes all privileges on new objects from other roles, records the functions, and revokes EXECUTE from PUBLIC.
    pub(super) fn claims(&self, plan: &Plan) -> Vec<String> {
        let owner = format!(
            "UPDATE {}.migrations SET applied_by = current_user WHERE applied_by <> current_user",
            self.schema.quoted()
        );
        let mut claims = vec![install(&self.schema, CLAIM, plan.parts), owner];
        if plan.shows_records {
            claims
                .push(self.schema.render("GRANT SELECT ON TABLE rate_limit.migrations, rate_limit.objects TO PUBLIC"));
        }
        if !plan.recorded.is_empty() {
            claims.push(record_functions(&self.schema, &plan.recorded));
        }
        claims.push(self.schema.render(CLOSE));
        claims
    }

    fn error(&self, failure: Failure) -> MigrateError {
        let schema = self.schema.to_string();
        let cause = failure.cause();
        // The error of a statement that cannot change a table may contain one of its rows.
        let failure = match failure {
            Failure::Driver(source) => Failure::Driver(with_hint(source)),
            other => other,
        };
        match failure {
            Failure::TooNew(found) => MigrateError::SchemaTooNew { schema, found, known: SCHEMA_VERSION },
            Failure::Occupied(table) => MigrateError::Occupied { schema, table },
            Failure::Misowned(Misowned { problem, statements }) => {
                MigrateError::Misowned { schema, problem, statements }
            }
            Failure::NotOwner(owner) => MigrateError::NotOwner { schema, owner },
            Failure::Lacking { role, privilege, what, granted_by } => {
                MigrateError::Lacking { schema, role, privilege, what, granted_by }
            }
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

pub(super) fn report(installed: &Installed, plan: &Plan, applied: Vec<&'static str>) -> MigrateReport {
    let planned = plan.migrations.iter().map(|migration| migration.version).max().unwrap_or_default();
    let version = planned.max(installed.version());
    let functions = plan.functions.iter().map(|function| function.signature).collect();
    MigrateReport { version, applied, functions, changed_by_hand: plan.changed.clone() }
}

/// Sets the parameters of [`SETTINGS`] to these values until the end of the transaction. Returns the previous values.
async fn exchange(conn: &mut PgConnection, values: &[&str]) -> Result<Vec<String>, sqlx::Error> {
    let mut before = Vec::new();
    for ((name, _), value) in SETTINGS.iter().zip(values) {
        let setting = unnamed("SELECT pg_catalog.current_setting($1), pg_catalog.set_config($1, $2, true)");
        let row = setting.query().bind(*name).bind(*value).fetch_one(&mut *conn).await?;
        before.push(row.try_get(0)?);
    }
    Ok(before)
}

/// Whether a transaction was begun as a statement. Outside of one, a simple query starts at the time of its transaction.
async fn in_raw_transaction(conn: &mut PgConnection) -> Result<bool, sqlx::Error> {
    let sql = "SELECT pg_catalog.now() <> pg_catalog.statement_timestamp()";
    sqlx::raw_sql(sql).fetch_one(conn).await?.try_get(0)
}

/// All YugabyteDB releases have the function, but advisory locks only since 2025.1.
async fn has_advisory_locks(conn: &mut PgConnection) -> Result<bool, sqlx::Error> {
    // There may be no transaction, so this is one message.
    sqlx::raw_sql(
        "SELECT pg_catalog.to_regprocedure('pg_catalog.pg_advisory_xact_lock(bigint)') IS NOT NULL \
         AND pg_catalog.version() !~ '-YB-(2024|2\\.)'",
    )
    .fetch_one(conn)
    .await?
    .try_get(0)
}
