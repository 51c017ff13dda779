//! A lone caller on random keys of a small and of a large table.

use std::time::Instant;

use pg_limiter::Isolation;
use sqlx::PgPool;

use crate::Failure;
use crate::case::Case;
use crate::keys::{self, Keys, PREFIX, Picks, Random};
use crate::limiters::{AMPLE, PLENTY};
use crate::load::Load;
use crate::names::{FEW_ROWS, MANY_ROWS, MANY_ROWS_QUICK, ROWS};
use crate::stage::Stage;

const FEW: usize = 10_000;
/// Rows that one statement fills in.
const AT_ONCE: usize = 1_000_000;
/// More keys than are called in a run, and few enough to make them beforehand.
const PICKED: usize = 200_000;

pub(crate) async fn cases(stage: &Stage) -> Result<Vec<Case>, Failure> {
    if !stage.options.wants(ROWS) {
        return Ok(Vec::new());
    }
    let many = if stage.options.quick { (MANY_ROWS_QUICK, 100_000) } else { (MANY_ROWS, 10_000_000) };
    let mut cases = Vec::new();
    for (name, rows) in [(FEW_ROWS, FEW), many] {
        let url = stage.postgres.database(&format!("rows_{rows}")).await?;
        fill(&url, rows).await?;
        let peer = stage.limiter(name, &url, Isolation::Serializable, AMPLE).await?;
        let load = Load { peer, callers: 1, picks: Picks::Uniform(some_of(rows)), allowed: true };
        cases.push(Case::calls(ROWS, load));
    }
    Ok(cases)
}

/// Buckets of which one token in a thousand is taken, so that they stay for long.
async fn fill(url: &str, rows: usize) -> Result<(), Failure> {
    let began = Instant::now();
    let pool = PgPool::connect(url).await?;
    for first in (0..rows).step_by(AT_ONCE) {
        let fill = "
            INSERT INTO rate_limits (name, key, shard, value, ts, idle_at)
            SELECT $1, $2 || lpad(number::text, 8, '0'), 0, $3 - 1e6, clock.us, clock.us + 1e6 * 3600e6
            FROM generate_series($4, $5 - 1) AS number,
              (SELECT (extract(epoch FROM now()) * 1e6)::bigint AS us) AS clock";
        let next = (first + AT_ONCE).min(rows);
        let fill = sqlx::query(fill).bind(AMPLE).bind(PREFIX).bind(PLENTY);
        fill.bind(i64::try_from(first)?).bind(i64::try_from(next)?).execute(&pool).await?;
    }
    sqlx::raw_sql("VACUUM ANALYZE rate_limits").execute(&pool).await?;
    sqlx::raw_sql("CHECKPOINT").execute(&pool).await?;
    pool.close().await;
    eprintln!("filled {rows} rows in {:.1} s", began.elapsed().as_secs_f64());
    Ok(())
}

fn some_of(rows: usize) -> Keys {
    let mut random = Random::default();
    (0..rows.min(PICKED)).map(|_| keys::key(format_args!("{:08}", random.below(rows)))).collect()
}
