//! Sliding and fixed windows and slots: compares many callers on many keys with Redis, and a lone caller with a bare UPDATE.

use pg_limiter::Isolation::Serializable;
use sqlx::{Connection, PgConnection};
use tokio::sync::Mutex;

use crate::Failure;
use crate::case::Case;
use crate::keys::{self, Picks};
use crate::limiters::{self, FIXED_HOUR, HOUR, LEASE, PLENTY, SLIDING_HOUR, SLOTS, SLOTS_OF_A_KEY};
use crate::load::{Load, call_each_once};
use crate::names::{CONCURRENCY_256, FIXED_256, LONE_SLIDING, OWN, SLIDING_256, UPDATE};
use crate::peer::Means;
use crate::redis_peer::{Redis, RedisLimit};
use crate::stage::Stage;

pub(crate) const CALLERS: usize = 256;

pub(crate) async fn cases(stage: &Stage) -> Result<Vec<Case>, Failure> {
    let mut cases = Vec::new();
    if stage.options.wants(SLIDING_256) {
        cases.extend(many(stage, SLIDING_256, SLIDING_HOUR, |redis| redis.sliding_window(PLENTY, HOUR)).await?);
    }
    if stage.options.wants(FIXED_256) {
        cases.extend(many(stage, FIXED_256, FIXED_HOUR, |redis| redis.fixed_window(PLENTY, HOUR)).await?);
    }
    if stage.options.wants(CONCURRENCY_256) {
        cases.extend(slots(stage).await?);
    }
    if stage.options.wants(LONE_SLIDING) {
        cases.extend(lone(stage).await?);
    }
    Ok(cases)
}

async fn many(
    stage: &Stage,
    work: &'static str,
    limit: &str,
    on_redis: impl Fn(&Redis) -> RedisLimit,
) -> Result<Vec<Case>, Failure> {
    let keys = keys::numbered_of(work, stage.options.size(100_000, 1_000));
    let mut peers = vec![stage.limiter(OWN, &stage.postgres.url(), Serializable, limit).await?];
    peers.extend(stage.redis(on_redis));
    call_each_once(stage, &peers, &keys).await?;
    let load = |peer| Load { peer, callers: CALLERS, picks: Picks::Uniform(keys.clone()), allowed: true };
    Ok(peers.into_iter().map(|peer| Case::calls(work, load(peer))).collect())
}

/// Each call takes a slot and releases it.
async fn slots(stage: &Stage) -> Result<Vec<Case>, Failure> {
    let keys = keys::numbered_of(CONCURRENCY_256, stage.options.size(10_000, 1_000));
    let limiter = limiters::connect(&stage.postgres.url(), Serializable, None).await?;
    let mut peers = vec![stage.peer(OWN, Means::Slots(limiter, SLOTS.into()))];
    peers.extend(stage.redis(|redis| redis.slots(SLOTS_OF_A_KEY, LEASE)));
    call_each_once(stage, &peers, &keys).await?;
    let load = |peer| Load { peer, callers: CALLERS, picks: Picks::Uniform(keys.clone()), allowed: true };
    Ok(peers.into_iter().map(|peer| Case::calls(CONCURRENCY_256, load(peer))).collect())
}

async fn lone(stage: &Stage) -> Result<Vec<Case>, Failure> {
    let url = stage.postgres.url();
    stage.postgres.rows_to_update([keys::key(LONE_SLIDING)]).await?;
    let connection = PgConnection::connect(&url).await?;
    let update = stage.peer(UPDATE, Means::UpdateAlone(Mutex::new(connection)));
    let own = stage.limiter(OWN, &url, Serializable, SLIDING_HOUR).await?;
    let load = |peer| Load { peer, callers: 1, picks: Picks::one(LONE_SLIDING), allowed: true };
    Ok([update, own].map(|peer| Case::calls(LONE_SLIDING, load(peer))).into())
}
