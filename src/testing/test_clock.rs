use std::time::{Duration, SystemTime, UNIX_EPOCH};

use sqlx::{AssertSqlSafe, PgConnection, PgPool, Row};

use crate::clock::LocalClock;
use crate::migrate::{LOCK_KEY, Part, functions};
use crate::sql::{PooledConnection, Schema};
use crate::testing::TestClockError;

const FUNCTION: &str = include_str!("../../sql/tests/test_clock.sql");
const SEQUENCE: &str = "_test_clock";

/// The `cluster_name` of servers that `embedded` starts.
const EMBEDDED: &str = "pg_limiter_embedded";

/// The farthest that a clock may be ahead: 100 years. Until the year 2255, the clock is exact to the microsecond.
const FARTHEST: Duration = Duration::from_secs(100 * 365 * 86_400);

/// The clock of a test's own schema, which the test advances.
///
/// While it is installed, everything in the schema follows it, in all sessions and processes: limits of every kind, leases, gates,
/// reservations, the queue, idempotency keys, pruning, and calls from SQL and triggers. It runs on between advances, as the
/// server's clock does. Other schemas keep the server's clock.
///
/// ```no_run
/// # use std::time::Duration;
/// # use pg_limiter::{Limit, Limiter, Limits, Schema};
/// # use pg_limiter::testing::TestClock;
/// # async fn f(pool: sqlx::PgPool) -> Result<(), Box<dyn std::error::Error>> {
/// let clock = TestClock::install(&pool, &Schema::default()).await?;
/// let hour = Duration::from_secs(3600);
/// let limiter = Limiter::new(pool, Limits::new().define("mails", Limit::token_bucket(1, hour))?);
/// limiter.limit(("mails", "u1")).await?.enforce()?;
/// assert!(!limiter.limit(("mails", "u1")).await?.is_allowed());
/// clock.advance(hour).await?;
/// assert!(limiter.limit(("mails", "u1")).await?.is_allowed());
/// # Ok(()) }
/// ```
///
/// # What an advance wakes
/// In this process, an advance wakes what sleeps until a time of the database:
/// [`until_ready`](crate::Limiter::until_ready), [`Lease::lost`](crate::Lease::lost), and workers, whose jobs may be due.
/// [Remembered denials](crate::LimiterConfig::remember_denials) expire by it. This applies to limiters whose pool has the same
/// host, port, database and schema as the pool of the clock. Workers in other processes look for jobs when they are notified, or
/// at the next [`poll`](crate::queue::WorkerConfig::poll). Other waits in other processes last as long as they would without
/// the advance. The tokens in an [`Allowance`](crate::Allowance) do not notice an advance: close it before.
///
/// The advance of a call that is being decided may end its wait early. So advance once a waiter sleeps.
///
/// For leases, an advance is a pause without renewals: leases that end within it are
/// [lost](crate::Lease::lost), even those that are [kept renewed](crate::Lease::keep_renewed), and a job that runs meanwhile may
/// be run again. Deadlines, time-outs and pauses before retries are of the process, and do not change.
///
/// # Where it can be installed
/// [`install`](Self::install) refuses, unless the name of the database or of the schema contains the word `test` (or `tests`,
/// `testing`, `test1`: a part between characters that are neither letters nor digits, in any case), or the server is an
/// [`embedded`](crate::guide::testing) one. The connection's role must own the limiter's functions. No migration and no command
/// of the tool installs it. A migration removes it, and `pg-limiter doctor` reports it.
#[derive(Clone, Debug)]
pub struct TestClock {
    pool: PgPool,
    schema: Schema,
    local: LocalClock,
}

impl TestClock {
    /// Installs a test clock in a schema that is migrated. If it has one, this is a second handle of it, and the time stays.
    ///
    /// # Errors
    /// [`TestClockError::NotATestSchema`], [`TestClockError::SchemaMissing`], [`TestClockError::NotOwner`] and
    /// [`TestClockError::Database`].
    ///
    /// # Cancel safety
    /// Safe. It is installed, or not.
    ///
    /// # In a transaction
    /// It uses its own transaction.
    pub async fn install(pool: &PgPool, schema: &Schema) -> Result<Self, TestClockError> {
        let mut tx = begin(pool).await?;
        let installed = Installed::read(&mut tx, schema).await?;
        if !installed.is_for_tests(schema) {
            return Err(TestClockError::NotATestSchema { database: installed.database, schema: schema.to_string() });
        }
        let Some(owner) = installed.owner else {
            return Err(TestClockError::SchemaMissing { schema: schema.to_string() });
        };
        if !installed.is_owner {
            return Err(TestClockError::NotOwner { schema: schema.to_string(), role: installed.role, owner });
        }
        if !installed.has_test_clock {
            let named = format!("{}.{SEQUENCE}", schema.quoted());
            let owner = owner.replace('"', "\"\"");
            let create = format!(
                "DROP SEQUENCE IF EXISTS {named}; CREATE SEQUENCE {named} MINVALUE 0 START WITH 0; \
                 ALTER SEQUENCE {named} OWNER TO \"{owner}\"; GRANT SELECT ON SEQUENCE {named} TO PUBLIC"
            );
            execute(&mut tx, create).await?;
            execute(&mut tx, schema.render(FUNCTION)).await?;
        }
        end(tx, "COMMIT").await?;
        Ok(Self { pool: pool.clone(), schema: schema.clone(), local: LocalClock::of(pool, schema.name()) })
    }

    /// Advances the clock by this time, in whole microseconds and rounded up, and wakes what sleeps. When it returns, every call
    /// that begins sees the new time.
    ///
    /// # Errors
    /// [`TestClockError::NotInstalled`], [`TestClockError::TooFar`] and [`TestClockError::Database`].
    ///
    /// # Cancel safety
    /// Not safe: the clock may have been advanced, and what sleeps may not have been woken.
    ///
    /// # In a transaction
    /// It uses its own connection. A transaction that has begun sees the new time, too. An advance is never rolled back.
    pub async fn advance(&self, by: Duration) -> Result<(), TestClockError> {
        let tx = self.begin_installed().await?;
        self.advance_in(tx, by).await
    }

    /// Advances the clock to this time, as [`advance`](Self::advance) does: for example to the
    /// [`run_at`](crate::queue::Ticket::run_at) of a job. When it returns, the clock shows this time or a later one. A clock that
    /// has already reached it stays as it is.
    ///
    /// ```no_run
    /// # use std::time::SystemTime;
    /// # async fn f(clock: pg_limiter::testing::TestClock, run_at: SystemTime) -> Result<(), Box<dyn std::error::Error>> {
    /// clock.advance_to(run_at).await?;
    /// assert!(clock.now().await? >= run_at);
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// See [`advance`](Self::advance).
    ///
    /// # Cancel safety
    /// Not safe: the clock may have been advanced, and what sleeps may not have been woken.
    ///
    /// # In a transaction
    /// It uses its own connection. A transaction that has begun sees the new time, too. An advance is never rolled back.
    pub async fn advance_to(&self, time: SystemTime) -> Result<(), TestClockError> {
        let mut tx = self.begin_installed().await?;
        match time.duration_since(self.read(&mut tx).await?) {
            Ok(by) => self.advance_in(tx, by).await,
            Err(_) => end(tx, "ROLLBACK").await,
        }
    }

    async fn advance_in(&self, mut tx: PooledConnection, by: Duration) -> Result<(), TestClockError> {
        let named = format!("{}.{SEQUENCE}", self.schema.quoted());
        let ahead: i64 = row(&mut tx, format!("SELECT last_value FROM {named}")).await?.try_get(0)?;
        let ahead = Duration::from_micros(ahead.unsigned_abs());
        let by = by.saturating_add(Duration::from_nanos(999));
        let by = Duration::from_micros(u64::try_from(by.as_micros()).unwrap_or(u64::MAX));
        let sum = ahead.saturating_add(by);
        if sum > FARTHEST {
            return Err(TestClockError::TooFar { by, ahead });
        }
        execute(&mut tx, format!("SELECT pg_catalog.setval($name${named}$name$, {})", sum.as_micros())).await?;
        self.local.advance(by);
        // Workers in other processes, if the queue is installed. YugabyteDB has no NOTIFY.
        let workers = "SELECT pg_catalog.to_regclass($name$rate_limit.workers$name$) IS NOT NULL";
        let has_queue: bool = row(&mut tx, self.schema.render(workers)).await?.try_get(0)?;
        let notify = "SELECT pg_catalog.pg_notify('rate_limit_jobs', w.queue) \
                      FROM (SELECT DISTINCT queue FROM rate_limit.workers) AS w \
                      WHERE pg_catalog.version() NOT LIKE '%-YB-%'";
        if has_queue {
            execute(&mut tx, self.schema.render(notify)).await?;
        }
        end(tx, "COMMIT").await
    }

    /// Returns the time of the clock, for example for [`Job::run_at`](crate::queue::Job::run_at).
    ///
    /// # Errors
    /// [`TestClockError::NotInstalled`] and [`TestClockError::Database`].
    ///
    /// # Cancel safety
    /// Safe.
    ///
    /// # In a transaction
    /// It uses its own connection.
    pub async fn now(&self) -> Result<SystemTime, TestClockError> {
        let mut tx = self.begin_installed().await?;
        let now = self.read(&mut tx).await?;
        end(tx, "ROLLBACK").await?;
        Ok(now)
    }

    async fn read(&self, conn: &mut PgConnection) -> Result<SystemTime, sqlx::Error> {
        let now = row(conn, format!("SELECT {}._clock()", self.schema.quoted())).await?;
        let micros: i64 = now.try_get(0)?;
        Ok(UNIX_EPOCH + Duration::from_micros(micros.unsigned_abs()))
    }

    /// Removes the test clock. The schema is on the server's time again, behind its buckets, which refill once that has caught
    /// up. Usually it is easier to drop the database. Does nothing if the schema has no test clock.
    ///
    /// # Errors
    /// [`TestClockError::Database`].
    ///
    /// # Cancel safety
    /// Safe. It is removed, or not.
    ///
    /// # In a transaction
    /// It uses its own transaction.
    pub async fn uninstall(self) -> Result<(), TestClockError> {
        let mut tx = begin(&self.pool).await?;
        if !Installed::read(&mut tx, &self.schema).await?.has_test_clock {
            return Ok(());
        }
        let is_clock = |function: &crate::migrate::Function| function.signature == "_clock()";
        for clock in functions(&self.schema, &[Part::Core]).into_iter().filter(is_clock) {
            execute(&mut tx, clock.sql).await?;
        }
        execute(&mut tx, format!("DROP SEQUENCE IF EXISTS {}.{SEQUENCE}", self.schema.quoted())).await?;
        end(tx, "COMMIT").await
    }

    async fn begin_installed(&self) -> Result<PooledConnection, TestClockError> {
        let mut tx = begin(&self.pool).await?;
        if Installed::read(&mut tx, &self.schema).await?.has_test_clock {
            return Ok(tx);
        }
        Err(TestClockError::NotInstalled { schema: self.schema.to_string() })
    }
}

/// Begins a transaction that waits for others of this kind, and for migrations. It ends with the connection, or with [`end`].
async fn begin(pool: &PgPool) -> Result<PooledConnection, sqlx::Error> {
    let mut tx = PooledConnection::acquire(pool).await?;
    execute(&mut tx, "BEGIN ISOLATION LEVEL READ COMMITTED READ WRITE".to_owned()).await?;
    execute(&mut tx, format!("SELECT pg_catalog.pg_advisory_xact_lock({LOCK_KEY})")).await?;
    Ok(tx)
}

async fn end(mut tx: PooledConnection, how: &'static str) -> Result<(), TestClockError> {
    execute(&mut tx, how.to_owned()).await?;
    tx.release();
    Ok(())
}

/// Simple queries: a pooler may send the two halves of a prepared one to different sessions.
async fn execute(conn: &mut PgConnection, sql: String) -> Result<(), sqlx::Error> {
    sqlx::raw_sql(AssertSqlSafe(sql)).execute(conn).await.map(|_| ())
}

async fn row(conn: &mut PgConnection, sql: String) -> Result<sqlx::postgres::PgRow, sqlx::Error> {
    sqlx::raw_sql(AssertSqlSafe(sql)).fetch_one(conn).await
}

/// The database and its clock.
struct Installed {
    database: String,
    cluster: Option<String>,
    role: String,
    /// `None` if there is no clock.
    owner: Option<String>,
    /// Whether the role has the rights of the owner.
    is_owner: bool,
    has_test_clock: bool,
}

impl Installed {
    async fn read(conn: &mut PgConnection, schema: &Schema) -> Result<Self, sqlx::Error> {
        let sql = "SELECT pg_catalog.current_database()::text, pg_catalog.current_setting('cluster_name', true), \
                     current_user::text, pg_catalog.pg_get_userbyid(p.proowner)::text, \
                     coalesce(pg_catalog.pg_has_role(p.proowner, 'USAGE'), false), \
                     coalesce(p.prosrc LIKE '%\\_test\\_clock%', false) \
                   FROM (SELECT 1) AS one \
                   LEFT JOIN pg_catalog.pg_proc AS p \
                     ON p.oid = pg_catalog.to_regprocedure($name$rate_limit._clock()$name$)";
        let row = row(conn, schema.render(sql)).await?;
        Ok(Self {
            database: row.try_get(0)?,
            cluster: row.try_get(1)?,
            role: row.try_get(2)?,
            owner: row.try_get(3)?,
            is_owner: row.try_get(4)?,
            has_test_clock: row.try_get(5)?,
        })
    }

    fn is_for_tests(&self, schema: &Schema) -> bool {
        self.cluster.as_deref() == Some(EMBEDDED) || has_word_test(&self.database) || has_word_test(schema.name())
    }
}

/// Whether a part of the name is `test`, `tests` or `testing`, perhaps with a number. `latest` and `testimonials` are not.
fn has_word_test(name: &str) -> bool {
    let is_test = |word: &str| {
        let word = word.trim_end_matches(|c: char| c.is_ascii_digit()).to_ascii_lowercase();
        matches!(word.as_str(), "test" | "tests" | "testing")
    };
    name.split(|c: char| !c.is_alphanumeric()).any(is_test)
}

#[cfg(test)]
mod tests {
    use super::has_word_test;

    #[test]
    fn only_the_word_test_names_a_database_of_tests() {
        for name in ["test", "app_test", "TEST-app", "tests", "app_testing", "test_12", "test7", "_sqlx_test_52"] {
            assert!(has_word_test(name), "{name}");
        }
        for name in ["", "app", "latest", "contest", "testimonials", "attestation", "protest_2", "te_st", "apptest"] {
            assert!(!has_word_test(name), "{name}");
        }
    }
}
