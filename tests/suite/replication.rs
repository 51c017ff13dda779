//! Faults of logical replication: the error says what is wrong. `pg-limiter doctor` finds the same.

use std::time::Duration;

use pg_limiter::queue::{Job, Queue};
use pg_limiter::sqlx::{self, AssertSqlSafe};
use pg_limiter::{Error, Item, Limit, Limiter, Limits};

use crate::support::Database;

fn limiter(database: &Database) -> Limiter {
    let limits = Limits::new().define("a", Limit::token_bucket(1000, Duration::from_secs(3600)));
    Limiter::new(database.pool.clone(), limits.expect("limits"))
}

#[tokio::test]
async fn a_publication_of_parts_of_rows_is_named_by_the_error() {
    let database = Database::migrated().await;
    let version: i32 = sqlx::query_scalar("SELECT current_setting('server_version_num')::integer")
        .fetch_one(&database.pool)
        .await
        .expect("a version");
    if version < 150_000 {
        return; // Publications are of whole rows there.
    }
    let limiter = limiter(&database);
    let _ = limiter.limit(("a", "k")).await.expect("a decision");
    for part in ["rate_limit.rate_limits WHERE (value > 10)", "rate_limit.rate_limits (name, value)"] {
        database.execute(&format!("CREATE PUBLICATION part FOR TABLE {part}")).await;
        for keys in [vec!["k"], vec!["k", "l"]] {
            let items: Vec<Item> = keys.into_iter().map(|key| Item::new("a", key)).collect();
            let error = limiter.limit(items).await.expect_err("refused");
            assert!(matches!(error, Error::Database { .. }) && !error.is_retryable(), "{error}");
            assert!(error.to_string().contains("a publication of the table"), "{error}");
        }
        database.execute("DROP PUBLICATION part").await;
        let _ = limiter.limit(("a", "k")).await.expect("a decision");
    }
    // A filter on the key harms nothing.
    database.execute("CREATE PUBLICATION part FOR TABLE rate_limit.rate_limits WHERE (name = 'b')").await;
    let _ = limiter.limit(("a", "k")).await.expect("a decision");
}

#[tokio::test]
async fn a_sequence_that_is_behind_is_named_by_the_error() {
    let database = Database::migrated().await;
    let queue = Queue::new(&limiter(&database), "q").expect("a queue");
    let job = || Job::new(("a", "k"), &1).expect("a job");
    for _ in 0..3 {
        let _ = queue.enqueue(job()).await.expect("enqueued");
    }
    database.execute("SELECT setval('rate_limit.jobs_id_seq', 1)").await;
    let error = queue.enqueue(job()).await.expect_err("refused");
    assert!(error.to_string().contains("the sequence of the jobs' ids is behind"), "{error}");
    let mend = "SELECT setval('rate_limit.jobs_id_seq', (SELECT max(id) FROM rate_limit.jobs))";
    sqlx::raw_sql(AssertSqlSafe(mend)).execute(&database.pool).await.expect("mended");
    let _ = queue.enqueue(job()).await.expect("enqueued");
}
