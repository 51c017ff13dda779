//! A hot key while another transaction holds an old snapshot, so that versions of the key's row accumulate. It is measured
//! once, not in every round.

use std::time::Duration;

use pg_limiter::Isolation;
use sqlx::PgPool;

use crate::Failure;
use crate::case::{Id, Measured, with_cpu_time};
use crate::keys::Picks;
use crate::limiters::{self, AMPLE};
use crate::load::Load;
use crate::names::{OLD_SNAPSHOT, OWN, OWN_UNDER_OLD_SNAPSHOT, WITHIN, WITHIN_UNDER_OLD_SNAPSHOT};
use crate::peer::Means;
use crate::results::Results;
use crate::stage::Stage;

/// The rates before and under the old snapshot, for calls in callers' transactions.
pub(crate) const WITHIN_IDS: [Id; 2] =
    [Id::of(OLD_SNAPSHOT, WITHIN, 8), Id::of(OLD_SNAPSHOT, WITHIN_UNDER_OLD_SNAPSHOT, 8)];
/// The same for combined calls.
pub(crate) const COMBINED_IDS: [Id; 2] =
    [Id::of(OLD_SNAPSHOT, OWN, 256), Id::of(OLD_SNAPSHOT, OWN_UNDER_OLD_SNAPSHOT, 256)];

/// How long the snapshot is held, under load, before the rate is measured again.
const HELD: Duration = Duration::from_secs(60);
const HELD_QUICK: Duration = Duration::from_secs(1);

pub(crate) async fn measure(stage: &Stage, results: &mut Results) {
    for (database, ids) in [("old_snapshot_within", WITHIN_IDS), ("old_snapshot_combined", COMBINED_IDS)] {
        eprintln!("{}", ids[1]);
        match decide(stage, database, &ids[0]).await {
            Ok(measured) => {
                for (id, measured) in ids.iter().zip(measured) {
                    results.add(1, id, Ok(measured));
                }
            }
            Err(failure) => results.add(1, &ids[1], Err(failure)),
        }
    }
}

async fn decide(stage: &Stage, database: &str, id: &Id) -> Result<[Measured; 2], Failure> {
    let url = stage.postgres.database(database).await?;
    let limiter = limiters::connect(&url, Isolation::Serializable, None).await?;
    let limit = AMPLE.into();
    let means = if id.peer == OWN { Means::Limiter(limiter, limit) } else { Means::Within(limiter, limit) };
    let peer = stage.peer(id.peer, means);
    let load = Load { peer, callers: id.callers, picks: Picks::one("hot"), allowed: true };
    let time = stage.options.time;
    load.warm_up(time).await?;
    let before = with_cpu_time(stage.postgres.processes(), load.run(time)).await?;

    let pool = PgPool::connect(&url).await?;
    let mut old = pool.begin_with("BEGIN ISOLATION LEVEL REPEATABLE READ").await?;
    sqlx::query("SELECT FROM rate_limit.rate_limits").execute(&mut *old).await?;
    load.run(if stage.options.quick { HELD_QUICK } else { HELD }).await?;
    let after = with_cpu_time(stage.postgres.processes(), load.run(time)).await?;
    old.rollback().await?;
    Ok([before, after])
}
