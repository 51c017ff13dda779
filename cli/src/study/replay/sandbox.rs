//! A sandbox, in which the database decides calls at given times: the limiter's tables and functions in the temporary schema of the
//! session, in a transaction that is rolled back. The existing rows of the database are neither read nor changed.

use sqlx::{AssertSqlSafe, Connection, PgConnection};

use crate::text::moment;
use crate::{CliError, NO_TIMEOUTS, Progress, Result, Running};
use pg_limiter::migrate::{Part, functions, migrations};
use pg_limiter::{Call, CallAt, Decision, Error, InvalidCall, Limits, Op, Schema, TransactionLimiter};

pub(crate) struct Sandbox {
    connection: PgConnection,
    schema: Schema,
}

impl Sandbox {
    pub(crate) async fn open(running: &Running) -> Result<Self> {
        let mut connection = running.connect().await?;
        let _progress = Progress::of("creating temporary tables and functions");
        // The isolation level of the limiter's own transactions. READ WRITE overrides the role's default.
        let begin = "BEGIN ISOLATION LEVEL SERIALIZABLE READ WRITE; SET LOCAL check_function_bodies = off";
        let begin = format!("{begin}; {NO_TIMEOUTS}");
        let schema = Schema::new("pg_temp").map_err(CliError::usage)?;
        let tables = migrations(&schema, &[Part::Core]).into_iter().map(|migration| migration.sql);
        let functions = functions(&schema, &[Part::Core]).into_iter().map(|function| function.sql);
        for sql in std::iter::once(begin).chain(tables).chain(functions) {
            sqlx::raw_sql(AssertSqlSafe(sql)).execute(&mut connection).await.map_err(|error| {
                let error = Error::database_message(&error);
                CliError::failed(format!(
                    "cannot create temporary tables and functions: {error}\nThe role needs TEMPORARY on the database, and \
                     the database must accept writes; if it is a standby, connect to the primary."
                ))
            })?;
        }
        // Every run picks the same rows of sharded buckets.
        sqlx::raw_sql("SELECT setseed(0); SAVEPOINT fresh").execute(&mut connection).await?;
        Ok(Self { connection, schema })
    }

    /// Decides calls, in the given order, which must be the order of time. Returns each with its decision.
    pub(crate) async fn decide<T>(
        &mut self,
        calls: Vec<Timed<T>>,
        limits: &Limits,
    ) -> Result<impl Iterator<Item = (Timed<T>, Result<Decision, InvalidCall>)> + use<T>> {
        let asked = |timed: &Timed<T>| CallAt::new(moment(timed.at), timed.op, timed.call.clone());
        let asked: Vec<CallAt> = calls.iter().map(asked).collect();
        let rate_limits = TransactionLimiter::in_schema(limits.clone(), self.schema.clone());
        Ok(calls.into_iter().zip(rate_limits.decide_at(&mut self.connection, &asked).await?))
    }

    /// Empties the tables, for another run with other limits.
    pub(crate) async fn rewind(&mut self) -> Result<()> {
        sqlx::raw_sql("ROLLBACK TO SAVEPOINT fresh; SELECT setseed(0)").execute(&mut self.connection).await?;
        Ok(())
    }

    pub(crate) async fn close(mut self) -> Result<()> {
        sqlx::raw_sql("ROLLBACK").execute(&mut self.connection).await?;
        Ok(self.connection.close().await?)
    }
}

/// Calls per statement: enough to make the round trip negligible.
pub(crate) const CHUNK: usize = 250;

/// A call, its time in microseconds since the Unix epoch, and what identifies it to the caller of [`Sandbox::decide`].
pub(crate) struct Timed<T> {
    pub(crate) at: i64,
    pub(crate) op: Op,
    pub(crate) call: Call,
    pub(crate) tag: T,
}

/// A call of a recording, or a question between its calls.
pub(super) type Asked = Timed<Purpose>;

pub(super) enum Purpose {
    /// The call of a line, and the name that the file gives to its lease.
    Line(usize, Option<String>),
    /// The balance of a panel.
    Balance(usize),
}
