//! Every call of a statement is answered as of the time at which the statement has locked all of its rows. Otherwise, what
//! flows in during a wait would be granted twice: to a call that was decided before the wait, and to the next caller.

use std::time::Duration;

use futures_util::future::join_all;
use pg_limiter::sqlx::{self, AssertSqlSafe, Executor, Row};

use crate::shards_contended::{LEVELS, session};
use crate::support::Database;
use crate::support::gate::until_waiting;

/// Two calls in one statement: one takes all ten tokens of the bucket, which refills in four seconds, and one takes a token
/// of another limit.
fn batch(bucket: &str, other: (&str, &str)) -> String {
    format!(
        "SELECT coalesce(call_admitted[1], 1) = 1 AND coalesce(call_admitted[2], 1) = 1 AS ok
         FROM rate_limit._decide(ARRAY['token_bucket', '{}'], ARRAY[10, 1000]::float8[], ARRAY[4000000, 3155760000000000],
           NULL, NULL, NULL, NULL, NULL, ARRAY['{bucket}', 'n'], ARRAY['k', '{}'], NULL, ARRAY[1, 2], ARRAY[10, 1]::float8[],
           NULL, NULL, NULL, NULL, NULL)",
        other.0, other.1
    )
}

fn ten_more(bucket: &str) -> String {
    format!("SELECT ok FROM rate_limit.limit_with('{bucket}', 'k', 'token_bucket', 10, '4 seconds', count => 10)")
}

/// The other call waits for a row that another transaction has locked, or has inserted and not committed.
#[tokio::test]
async fn a_call_decided_before_its_batch_waits_is_answered_as_of_the_end_of_the_wait() {
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
    let sql = "SELECT ok FROM rate_limit.limit_with($1, $2, $3, 10, '4 seconds')";
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
    assert!(!second, "{case}: 20 tokens at once from a bucket of 10 in 4 seconds");
}
