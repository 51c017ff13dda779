//! A lone caller on random keys of a large table. It compares a limit with a bare UPDATE of the same table.

use std::time::Instant;

use fastrand::Rng;
use pg_limiter::Isolation;
use sqlx::{Connection, PgConnection, PgPool};
use tokio::sync::Mutex;

use crate::Failure;
use crate::case::Case;
use crate::keys::{self, Keys, PREFIX, Picks};
use crate::limiters::{AMPLE, PLENTY};
use crate::load::Load;
use crate::names::{ROWS, ROWS_LIMIT, ROWS_LIMIT_QUICK, ROWS_UPDATE, ROWS_UPDATE_QUICK};
use crate::peer::Means;
use crate::stage::Stage;

/// The number of rows that one statement inserts.
const AT_ONCE: usize = 1_000_000;
/// The number of different keys: more than a run calls, and few enough to create in advance.
const PICKED: usize = 200_000;

pub(crate) async fn cases(stage: &Stage) -> Result<Vec<Case>, Failure> {
    if !stage.options.wants(ROWS) {
        return Ok(Vec::new());
    }
    let (rows, [update, limit]) = if stage.options.quick {
        (100_000, [ROWS_UPDATE_QUICK, ROWS_LIMIT_QUICK])
    } else {
        (10_000_000, [ROWS_UPDATE, ROWS_LIMIT])
    };
    let url = stage.postgres.database(ROWS).await?;
    fill(&url, rows).await?;
    let connection = PgConnection::connect(&url).await?;
    let update = stage.peer(update, Means::UpdateBucket(Mutex::new(connection)));
    let own = stage.limiter(limit, &url, Isolation::Serializable, AMPLE).await?;
    // After a checkpoint, the first change to each page writes it to the WAL in full. Each peer begins with a checkpoint, so
    // that this costs each of them the same.
    let before = Some((PgPool::connect(&url).await?, "CHECKPOINT".to_owned()));
    let picks = Picks::Uniform(some_of(rows));
    let load = |peer| Load { peer, callers: 1, picks: picks.clone(), allowed: true };
    Ok([update, own].map(|peer| Case::calls_after(ROWS, load(peer), before.clone())).into())
}

/// Fills in buckets with one token in a thousand taken, so that they do not become idle soon.
async fn fill(url: &str, rows: usize) -> Result<(), Failure> {
    let began = Instant::now();
    let pool = PgPool::connect(url).await?;
    for first in (0..rows).step_by(AT_ONCE) {
        let fill = "
            INSERT INTO rate_limit.rate_limits (name, key, shard, value, ts, idle_at)
            SELECT $1, $2 || lpad(number::text, 8, '0'), 0, $3 - 1e6, clock.us, clock.us + 1e6 * 3600e6
            FROM generate_series($4, $5 - 1) AS number,
              (SELECT (extract(epoch FROM now()) * 1e6)::bigint AS us) AS clock";
        let next = (first + AT_ONCE).min(rows);
        let fill = sqlx::query(fill).bind(AMPLE).bind(PREFIX).bind(PLENTY);
        fill.bind(i64::try_from(first)?).bind(i64::try_from(next)?).execute(&pool).await?;
    }
    sqlx::raw_sql("VACUUM ANALYZE rate_limit.rate_limits").execute(&pool).await?;
    sqlx::raw_sql("CHECKPOINT").execute(&pool).await?;
    pool.close().await;
    eprintln!("filled {rows} rows in {:.1} s", began.elapsed().as_secs_f64());
    Ok(())
}

fn some_of(rows: usize) -> Keys {
    let mut random = Rng::new();
    (0..rows.min(PICKED)).map(|_| keys::key(format_args!("{:08}", random.usize(..rows)))).collect()
}
