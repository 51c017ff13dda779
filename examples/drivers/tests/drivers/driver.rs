//! The drivers, and the database of a test.

use std::sync::LazyLock;

use ::diesel_async::pooled_connection::AsyncDieselConnectionManager;
use ::diesel_async::pooled_connection::deadpool::Pool as DieselPool;
use ::diesel_async::{AnsiTransactionManager, AsyncPgConnection, TransactionManager};
use ::sea_orm::{Database, DatabaseConnection, DbErr, RuntimeErr, TransactionTrait};
use ::tokio_postgres::NoTls;
use pg_limiter::embedded::{Server, ServerConfig};
use pg_limiter_drivers::shared::{Decision, Message};
use pg_limiter_drivers::{diesel_async, sea_orm, tokio_postgres};
use serde_json::Value;
use sqlx::{AssertSqlSafe, PgPool};

use crate::common::{self, BoxError};

/// A driver, as the tests use it.
pub(crate) trait Driver: Clone + Send + Sync + 'static {
    async fn connect(url: &str) -> Result<Self, BoxError>;
    fn limit_alone(&self, calls: &Value) -> impl Future<Output = Result<Decision, BoxError>> + Send;
    async fn limit_and_roll_back(&self, calls: &Value) -> Result<Decision, BoxError>;
    fn post(&self, message: &Message<'_>) -> impl Future<Output = Result<Decision, BoxError>> + Send;
    /// The server's message.
    fn message(error: &BoxError) -> String;
}

#[derive(Clone)]
pub(crate) struct TokioPostgres(deadpool_postgres::Pool);

impl Driver for TokioPostgres {
    async fn connect(url: &str) -> Result<Self, BoxError> {
        let manager = deadpool_postgres::Manager::new(url.parse()?, NoTls);
        Ok(Self(deadpool_postgres::Pool::builder(manager).max_size(8).build()?))
    }

    async fn limit_alone(&self, calls: &Value) -> Result<Decision, BoxError> {
        Ok(tokio_postgres::limit_alone(&self.0, calls).await?)
    }

    async fn limit_and_roll_back(&self, calls: &Value) -> Result<Decision, BoxError> {
        let mut client = self.0.get().await?;
        let tx = client.transaction().await?;
        let decision = tokio_postgres::limit(&tx, calls).await;
        tx.rollback().await?;
        Ok(decision?)
    }

    async fn post(&self, message: &Message<'_>) -> Result<Decision, BoxError> {
        Ok(tokio_postgres::post(&self.0, message).await?)
    }

    fn message(error: &BoxError) -> String {
        let Some(deadpool_postgres::PoolError::Backend(error)) = error.downcast_ref() else { panic!("{error:?}") };
        let error = error.as_db_error().expect("an error of the server");
        assert_eq!(error.code().code(), "22023");
        error.message().to_owned()
    }
}

#[derive(Clone)]
pub(crate) struct DieselAsync(DieselPool<AsyncPgConnection>);

impl Driver for DieselAsync {
    async fn connect(url: &str) -> Result<Self, BoxError> {
        let manager = AsyncDieselConnectionManager::<AsyncPgConnection>::new(url);
        Ok(Self(DieselPool::builder(manager).max_size(8).build()?))
    }

    async fn limit_alone(&self, calls: &Value) -> Result<Decision, BoxError> {
        diesel_async::limit_alone(&self.0, calls).await
    }

    async fn limit_and_roll_back(&self, calls: &Value) -> Result<Decision, BoxError> {
        let mut connection = self.0.get().await?;
        AnsiTransactionManager::begin_transaction(&mut *connection).await?;
        let decision = diesel_async::limit(&mut connection, calls).await;
        AnsiTransactionManager::rollback_transaction(&mut *connection).await?;
        Ok(decision?)
    }

    async fn post(&self, message: &Message<'_>) -> Result<Decision, BoxError> {
        diesel_async::post(&self.0, message).await
    }

    fn message(error: &BoxError) -> String {
        match error.downcast_ref() {
            Some(diesel::result::Error::DatabaseError(_, error)) => error.message().to_owned(),
            _ => panic!("{error:?}"),
        }
    }
}

#[derive(Clone)]
pub(crate) struct SeaOrm(pub(crate) DatabaseConnection);

impl Driver for SeaOrm {
    async fn connect(url: &str) -> Result<Self, BoxError> {
        Ok(Self(Database::connect(url).await?))
    }

    async fn limit_alone(&self, calls: &Value) -> Result<Decision, BoxError> {
        Ok(sea_orm::limit(&self.0, calls).await?)
    }

    async fn limit_and_roll_back(&self, calls: &Value) -> Result<Decision, BoxError> {
        let tx = self.0.begin().await?;
        let decision = sea_orm::limit(&tx, calls).await;
        tx.rollback().await?;
        Ok(decision?)
    }

    async fn post(&self, message: &Message<'_>) -> Result<Decision, BoxError> {
        Ok(sea_orm::post(&self.0, message).await?)
    }

    fn message(error: &BoxError) -> String {
        let Some(DbErr::Query(RuntimeErr::SqlxError(error))) = error.downcast_ref() else { panic!("{error:?}") };
        let error = error.as_database_error().expect("an error of the server");
        assert_eq!(error.code().as_deref(), Some("22023"));
        error.message().to_owned()
    }
}

/// The server of all tests.
static SERVER: LazyLock<Server> = LazyLock::new(|| {
    let mut config = ServerConfig::default();
    config.durable = false;
    Server::start(&config).unwrap_or_else(|error| panic!("no PostgreSQL for the tests: {error}"))
});

/// Runs a test in a database of its own with this default isolation level, where the application has its table. `number`
/// counts the attempts to insert a row.
pub(crate) async fn app<D: Driver>(isolation: &str, test: impl AsyncFnOnce(&PgPool, &D) -> Result<(), BoxError>) {
    app_with("default_transaction_isolation", isolation, test).await;
}

/// As `app`, with another setting of the database.
pub(crate) async fn app_with<D: Driver>(
    setting: &str,
    value: &str,
    test: impl AsyncFnOnce(&PgPool, &D) -> Result<(), BoxError>,
) {
    let url = tokio::task::spawn_blocking(|| SERVER.url("postgres")).await.expect("a server");
    common::on_a_fresh_database_of(&url, async |pool| {
        let setup = format!(
            "CREATE TABLE messages (author text NOT NULL, org text NOT NULL, body text PRIMARY KEY, number bigserial);
             DO $$ BEGIN
               EXECUTE format('ALTER DATABASE %I SET {setting} = %L', current_database(), '{value}');
             END $$"
        );
        sqlx::raw_sql(AssertSqlSafe(setup)).execute(pool).await?;
        let options = pool.connect_options();
        let driver = D::connect(&SERVER.url(options.get_database().ok_or("no database")?)).await?;
        test(pool, &driver).await
    })
    .await
    .expect("the test");
}
