//! Units of work that take a token and write a row. There must always be as many rows as spent tokens.

use std::sync::Arc;
use std::time::Duration;

use fastrand::Rng;
use pg_limiter::Error;
use sqlx::{AssertSqlSafe, PgPool};
use tokio::task::JoinSet;

use super::call::WorkError;
use super::round::{Books, audited};
use super::setup::SoakSetup;
use super::stats::{Stats, Taken};

const WHAT: &str = "units";
const LOOKS: u32 = 50;
const BETWEEN_LOOKS: Duration = Duration::from_millis(100);

pub(super) async fn units(setup: Arc<SoakSetup>, stats: Arc<Stats>, callers: u32, mut dice: Rng) {
    let Some(table) = setup.table().map(str::to_owned) else { return };
    let capacity = setup.of(WHAT).map_or(0.0, pg_limiter::Limit::capacity);
    let each = (capacity * 1.4 / f64::from(callers)).ceil() as u32;
    for round in 1_i64.. {
        let key = format!("{WHAT} {round}");
        let mut tasks = JoinSet::new();
        for _ in 0..callers {
            let (setup, stats, mut dice) = (Arc::clone(&setup), Arc::clone(&stats), dice.fork());
            let (key, table) = (key.clone(), table.clone());
            tasks.spawn(async move {
                let (mut known, mut perhaps) = (0_u32, 0_u32);
                for _ in 0..each {
                    if stats.is_stopped() {
                        break;
                    }
                    match unit(&setup, &stats, &mut dice, &key, round, &table).await {
                        Taken::Yes => known += 1,
                        Taken::Perhaps => perhaps += 1,
                        Taken::No => {}
                    }
                }
                (known, perhaps)
            });
        }
        let (mut known, mut perhaps) = (0, 0);
        while let Some(joined) = tasks.join_next().await {
            match joined {
                Ok((one, other)) => {
                    known += one;
                    perhaps += other;
                }
                Err(error) => stats.violated(format!("{key}: a caller panicked: {error}")),
            }
        }
        match compare(&setup, &key, round, &table, capacity, known, perhaps).await {
            Ok(None) => stats.audited(),
            Ok(Some(wrong)) => stats.violated(format!("{key}: {wrong}")),
            Err(error) => stats.violated(format!("{key}: the rows or the balance could not be read: {error}")),
        }
        let delete = AssertSqlSafe(format!("DELETE FROM {table} WHERE round = $1"));
        let deleted = sqlx::query(delete).bind(round).execute(setup.audit_pool()).await;
        if let Err(error) = deleted {
            stats.violated(format!("{key}: the rows could not be removed: {error}"));
        }
        if let Err(error) = setup.audit().reset(setup.item(WHAT, &key)).await {
            stats.violated(format!("{key}: the rows could not be removed: {error}"));
        }
        if !stats.pause(Duration::from_millis(dice.usize(..100) as u64)).await {
            return;
        }
    }
}

async fn unit(setup: &SoakSetup, stats: &Stats, dice: &mut Rng, key: &str, round: i64, table: &str) -> Taken {
    let limiter = setup.any_limiter(dice);
    let within = limiter.clone();
    let item = setup.item(WHAT, key);
    let gives_up = dice.usize(..8) == 0;
    let first = dice.usize(..2) == 0;
    let insert = format!("INSERT INTO {table} (round) VALUES ($1)");
    let work = limiter.transaction(async move |tx| {
        let insert = sqlx::query(AssertSqlSafe(insert.clone())).bind(round);
        if first {
            insert.execute(&mut *tx).await?;
            within.within(tx).limit(item.clone()).await?.enforce()?;
        } else {
            within.within(tx).limit(item.clone()).await?.enforce()?;
            insert.execute(&mut *tx).await?;
        }
        if gives_up { Err(WorkError::OnPurpose) } else { Ok(()) }
    });
    let result = if dice.usize(..20) == 0 {
        match tokio::time::timeout(Duration::from_micros(dice.usize(..8000) as u64), work).await {
            Ok(result) => result,
            Err(_) => {
                stats.cancelled();
                return Taken::Perhaps;
            }
        }
    } else {
        work.await
    };
    match result {
        Ok(()) => {
            stats.decided();
            Taken::Yes
        }
        Err(error) => error.taken(stats),
    }
}

async fn rows(pool: &PgPool, table: &str, round: i64) -> Result<f64, sqlx::Error> {
    let count = AssertSqlSafe(format!("SELECT pg_catalog.count(*) FROM {table} WHERE round = $1"));
    sqlx::query_scalar::<_, i64>(count).bind(round).fetch_one(pool).await.map(|rows| rows as f64)
}

/// Reads the rows and the balance until they match, and returns the mismatch if they still do not after `LOOKS` attempts.
async fn compare(
    setup: &SoakSetup,
    key: &str,
    round: i64,
    table: &str,
    capacity: f64,
    known: u32,
    perhaps: u32,
) -> Result<Option<String>, Error> {
    let of_table = |error| Error::from_sql(error, "");
    let mut wrong = None;
    for _ in 0..LOOKS {
        let before = rows(setup.audit_pool(), table, round).await.map_err(of_table)?;
        wrong = audited(setup, &[setup.item(WHAT, key)], &[capacity], |spent| {
            let spent = spent.first().copied().unwrap_or_default();
            let books = Books { admitted: known.into(), perhaps: perhaps.into() };
            books.wrong(spent, capacity)
        })
        .await?;
        if wrong.is_some() {
            return Ok(wrong);
        }
        let left = setup.audit().peek(setup.item(WHAT, key)).await?.remaining();
        let spent = capacity - left;
        if (before - spent).abs() <= 0.01 {
            return Ok(None);
        }
        wrong = Some(format!("units of work wrote {before} rows, but spent {spent} tokens"));
        tokio::time::sleep(BETWEEN_LOOKS).await;
    }
    Ok(wrong)
}
