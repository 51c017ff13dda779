//! Conflicts with another session, which the tests cause at the right moment.

use std::time::Duration;

use pg_limiter_drivers::shared::{Message, RATE_LIMIT_ALL};
use sqlx::{Connection, PgConnection, PgPool};

use crate::common::BoxError;
use crate::driver::{Driver, app};

const MESSAGE: Message<'_> = Message { author: "u1", org: "o1", body: "one" };

async fn session(pool: &PgPool) -> Result<PgConnection, sqlx::Error> {
    PgConnection::connect_with(&pool.connect_options()).await
}

/// Takes the tokens of the message, and so locks their rows.
async fn take_tokens(session: &mut PgConnection) -> Result<(), sqlx::Error> {
    sqlx::query(RATE_LIMIT_ALL).bind(sqlx::types::Json(MESSAGE.cost())).execute(session).await.map(|_| ())
}

/// Waits until so many sessions of this database wait for a lock.
async fn until_blocked(pool: &PgPool, sessions: i64) -> Result<(), BoxError> {
    let blocked =
        "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'";
    for _ in 0..3000 {
        let count: i64 = sqlx::query_scalar(blocked).fetch_one(pool).await?;
        if count >= sessions {
            return Ok(());
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    Err(format!("{sessions} sessions do not wait for locks").into())
}

/// The number of the attempt that inserted the message.
async fn attempt(pool: &PgPool) -> Result<i64, sqlx::Error> {
    sqlx::query_scalar("SELECT number FROM messages").fetch_one(pool).await
}

pub(crate) async fn a_serialization_failure_is_retried<D: Driver>() {
    app("serializable", async |pool, driver: &D| {
        let mut other = session(pool).await?;
        let mut tx = other.begin().await?;
        take_tokens(&mut tx).await?;
        let caller = driver.clone();
        let post = tokio::spawn(async move { caller.post(&MESSAGE).await });
        until_blocked(pool, 1).await?;
        tx.commit().await?; // The snapshot of the post is older.
        let decision = post.await??;
        assert!(decision.ok && decision.limits[0].value < 1.5, "{decision:?}");
        assert_eq!(attempt(pool).await?, 2);
        Ok(())
    })
    .await;
}

pub(crate) async fn a_deadlock_is_retried<D: Driver>() {
    app("read committed", async |pool, driver: &D| {
        // An inserted row waits for this lock, so that the post waits between its insert and its tokens.
        let pause = "CREATE FUNCTION pause() RETURNS trigger LANGUAGE plpgsql AS
            'BEGIN PERFORM pg_advisory_xact_lock_shared(1); RETURN NULL; END';
            CREATE TRIGGER pause AFTER INSERT ON messages FOR EACH ROW EXECUTE FUNCTION pause()";
        sqlx::raw_sql(pause).execute(pool).await?;
        let (mut gate, mut other) = (session(pool).await?, session(pool).await?);
        sqlx::query("SELECT pg_advisory_lock(1)").execute(&mut gate).await?;

        let caller = driver.clone();
        let post = tokio::spawn(async move { caller.post(&MESSAGE).await });
        until_blocked(pool, 1).await?;
        let rival = tokio::spawn(async move {
            let mut tx = other.begin().await?;
            // The post has to detect the deadlock.
            sqlx::query("SET LOCAL deadlock_timeout = '10min'").execute(&mut *tx).await?;
            take_tokens(&mut tx).await?;
            sqlx::query("INSERT INTO messages VALUES ('u2', 'o1', 'one')").execute(&mut *tx).await?;
            tx.rollback().await
        });
        until_blocked(pool, 2).await?;
        gate.close().await?; // The post now waits for the rival's tokens, and the rival for the post's row.

        rival.await??;
        let decision = post.await??;
        assert!(decision.ok && decision.limits[0].value == 2.0, "{decision:?}");
        assert!(attempt(pool).await? > 1);
        Ok(())
    })
    .await;
}
