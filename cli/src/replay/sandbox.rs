//! A sandbox for replays. The limiter's migrations create its tables and functions in the temporary schema of the session,
//! in a transaction that is rolled back. The existing rows of the database are neither read nor changed.

use sqlx::{AssertSqlSafe, Connection, PgConnection};

use crate::database::Running;
use crate::error::CliError;
use crate::progress::Progress;
use pg_limiter::migrate::{Part, functions, migrations};
use pg_limiter::{CallAt, Decision, InvalidCall, Limits, Schema, TransactionLimiter};

pub(crate) struct Sandbox {
    connection: PgConnection,
    schema: Schema,
    /// Those of the last call, prepared.
    rate_limits: Option<TransactionLimiter>,
}

impl Sandbox {
    pub(crate) async fn open(running: &Running) -> Result<Self, CliError> {
        let mut connection = running.connect().await?;
        let _progress = Progress::of("creating temporary tables and functions");
        // The isolation level of the limiter's own transactions. READ WRITE overrides the role's default.
        sqlx::raw_sql("BEGIN ISOLATION LEVEL SERIALIZABLE READ WRITE").execute(&mut connection).await?;
        let schema = Schema::new("pg_temp")?;
        sqlx::raw_sql("SET LOCAL check_function_bodies = off").execute(&mut connection).await?;
        let tables = migrations(&schema, &[Part::Core]).into_iter().map(|migration| migration.sql);
        for sql in tables.chain(functions(&schema, &[Part::Core]).into_iter().map(|function| function.sql)) {
            sqlx::raw_sql(AssertSqlSafe(sql)).execute(&mut connection).await.map_err(|error| {
                CliError::failed(format!(
                    "cannot create temporary tables and functions: {error}\nThe role needs TEMPORARY on the database, and \
                     the database must accept writes."
                ))
            })?;
        }
        // Every run picks the same rows of sharded buckets.
        sqlx::raw_sql("SELECT setseed(0); SAVEPOINT fresh").execute(&mut connection).await?;
        Ok(Self { connection, schema, rate_limits: None })
    }

    pub(crate) async fn decide(
        &mut self,
        limits: &Limits,
        calls: &[CallAt],
    ) -> Result<Vec<Result<Decision, InvalidCall>>, CliError> {
        let schema = &self.schema;
        let rate_limits =
            self.rate_limits.get_or_insert_with(|| TransactionLimiter::in_schema(limits.clone(), schema.clone()));
        Ok(rate_limits.decide_at(&mut self.connection, calls).await?)
    }

    /// Empties the tables, for another run with other limits.
    pub(crate) async fn rewind(&mut self) -> Result<(), CliError> {
        self.rate_limits = None;
        sqlx::raw_sql("ROLLBACK TO SAVEPOINT fresh; SELECT setseed(0)").execute(&mut self.connection).await?;
        Ok(())
    }

    pub(crate) async fn close(mut self) -> Result<(), CliError> {
        sqlx::raw_sql("ROLLBACK").execute(&mut self.connection).await?;
        Ok(self.connection.close().await?)
    }
}
