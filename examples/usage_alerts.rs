//! Warns customers before their monthly e-mails run out. The call that raises the use to 80 % or to 100 % of the limit writes an
//! alert to an outbox, in the same transaction: each alert is written once, and only if its e-mail is.
//!
//!     cargo run --features embedded --example usage_alerts
//!
//! It runs in a temporary database: on the server in `DATABASE_URL`, or on a private PostgreSQL if that is not set.

#[cfg(not(test))]
mod common;

use std::collections::BTreeMap;
use std::time::Duration;

use futures_util::future::try_join_all;
use pg_limiter::{Limit, Limiter, Limits};
use sqlx::PgPool;

type BoxError = Box<dyn std::error::Error + Send + Sync>;

const MARKS: [(f64, &str); 2] = [(0.8, "80 % used"), (1.0, "all used")];

#[derive(Debug, thiserror::Error)]
enum SendError {
    #[error(transparent)]
    Limit(#[from] pg_limiter::Error),
    #[error(transparent)]
    Database(#[from] sqlx::Error),
}

/// Sends an e-mail if the customer has one left. Returns whether it was sent.
async fn send(limiter: &Limiter, customer: &str, subject: &str) -> Result<bool, SendError> {
    let (limits, customer, subject) = (limiter.clone(), customer.to_owned(), subject.to_owned());
    limiter
        .transaction(async move |tx| {
            let decision = limits.within(tx).limit(("emails", &*customer)).await?;
            if decision.is_denied() {
                return Ok(false);
            }
            let email = "INSERT INTO emails (customer, subject) VALUES ($1, $2)";
            sqlx::query(email).bind(&customer).bind(&subject).execute(&mut *tx).await?;
            for (mark, what) in MARKS {
                for state in decision.crossed(mark) {
                    let alert = format!("{}: {what}", state.limit);
                    let outbox = "INSERT INTO outbox (customer, alert) VALUES ($1, $2)";
                    sqlx::query(outbox).bind(&customer).bind(alert).execute(&mut *tx).await?;
                }
            }
            Ok(true)
        })
        .await
}

/// The results, which the test checks.
#[derive(Debug)]
#[cfg_attr(not(test), allow(dead_code))]
pub(crate) struct Story {
    pub(crate) sent: usize,
    /// How often the outbox has each alert.
    pub(crate) alerts: BTreeMap<String, i64>,
}

pub(crate) async fn run(pool: &PgPool) -> Result<Story, BoxError> {
    let tables = "CREATE TABLE emails (customer text NOT NULL, subject text NOT NULL);
                  CREATE TABLE outbox (customer text NOT NULL, alert text NOT NULL)";
    sqlx::raw_sql(tables).execute(pool).await?;
    let month = Duration::from_secs(30 * 86_400);
    let limits = Limits::new().define("emails", Limit::fixed_window(20, month))?;
    let limiter = Limiter::new(pool.clone(), limits);

    // 30 e-mails at the same time, of a customer with a limit of 20.
    let subjects: Vec<String> = (0..30).map(|nth| format!("news {nth}")).collect();
    let all = try_join_all(subjects.iter().map(|subject| send(&limiter, "acme", subject))).await?;
    let sent = all.iter().filter(|sent| **sent).count();
    println!("{sent} of {} e-mails sent", all.len());

    let sql = "SELECT alert, count(*) FROM outbox GROUP BY alert ORDER BY alert";
    let alerts: BTreeMap<String, i64> = sqlx::query_as(sql).fetch_all(pool).await?.into_iter().collect();
    println!("alerts in the outbox: {alerts:?}");
    limiter.close().await;
    Ok(Story { sent, alerts })
}

#[cfg(not(test))]
#[tokio::main]
async fn main() -> Result<(), BoxError> {
    common::on_a_fresh_database(run).await.map(drop)
}
