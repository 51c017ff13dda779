//! Every call of a statement is answered as of the time at which the statement has all of its rows: one that was decided
//! before a wait must not leave what flowed in meanwhile to the next caller as well.

use std::time::Duration;

use futures_util::future::join_all;
use pg_limiter::sqlx::{self, AssertSqlSafe, Executor, Row};

use crate::shards_contended::{LEVELS, session};
use crate::support::Database;
use crate::support::gate::until_waiting;

/// Two calls in one statement: all ten tokens of the bucket, which are back after four seconds, and one of another limit.
fn batch(bucket: &str, other: (&str, &str)) -> String {
    format!(
        "SELECT coalesce(call_admitted[1], 1) = 1 AND coalesce(call_admitted[2], 1) = 1 AS ok
         FROM rate_limit_decide(ARRAY['token_bucket', '{}'], ARRAY[10, 1000]::float8[], ARRAY[4000000, 3155760000000000],
           NULL, NULL, NULL, NULL, NULL, ARRAY['{bucket}', 'n'], ARRAY['k', '{}'], NULL, ARRAY[1, 2], ARRAY[10, 1]::float8[],
           NULL, NULL, NULL, NULL, NULL)",
        other.0, other.1
    )
}

fn ten_more(bucket: &str) -> String {
    format!("SELECT ok FROM rate_limit('{bucket}', 'k', 'token_bucket', 10, '4 seconds', count => 10)")
}

/// What the other call waits for: a row that somebody holds, and one that somebody has put there and not committed.
#[tokio::test]
async fn a_call_that_was_decided_before_a_wait_of_its_batch_is_answered_as_of_its_end() {
    for level in LEVELS {
        let kinds = ["sliding_window", "fixed_window", "token_bucket"];
        let cases = kinds.map(|kind| [(kind, false, "a"), (kind, false, "z"), (kind, true, "a"), (kind, true, "z")]);
        let cases = cases.into_iter().flatten();
        join_all(cases.map(|(kind, is_new, bucket)| is_answered_as_of_the_end(level, kind, is_new, bucket))).await;
    }
}

async fn is_answered_as_of_the_end(level: &str, kind: &str, is_new: bool, bucket: &str) {
    let case = format!("{level}, {kind}, new: {is_new}, {bucket}");
    let database = Database::migrated().await;
    let sql = "SELECT ok FROM rate_limit($1, $2, $3, 10, '4 seconds')";
    let setup = [(bucket, "k", "token_bucket"), ("n", "there", kind)];
    for (name, key, kind) in setup {
        sqlx::query(sql).bind(name).bind(key).bind(kind).execute(&database.pool).await.expect("a row");
    }
    tokio::time::sleep(Duration::from_millis(600)).await; // Full again.
    let mut holder = database.pool.begin().await.expect("begin");
    let key = if is_new { "new" } else { "there" };
    sqlx::query(sql).bind("n").bind(key).bind(kind).execute(&mut *holder).await.expect("a held row");

    let mut caller = session(&database, level).await;
    let statement = batch(bucket, (kind, key));
    let first = tokio::spawn(async move {
        let row = caller.fetch_one(AssertSqlSafe(statement)).await?;
        Ok::<bool, sqlx::Error>(row.get("ok"))
    });
    until_waiting(&database, 1).await;
    tokio::time::sleep(Duration::from_millis(4_200)).await;
    holder.rollback().await.expect("rollback");
    let first = first.await.expect("a task").expect("a decision");
    assert!(first, "{case}");
    let second: bool =
        sqlx::query_scalar(AssertSqlSafe(ten_more(bucket))).fetch_one(&database.pool).await.expect("a decision");
    assert!(!second, "{case}: 20 tokens of 10 in 4 seconds at once");
}
