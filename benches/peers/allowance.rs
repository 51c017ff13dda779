//! Many callers on one key that spend from memory: compares an allowance with governor, with Redis, and with a decision of the
//! database for each call.

use std::num::NonZeroU32;
use std::time::Duration;

use governor::{Quota, RateLimiter};
use pg_limiter::Isolation::Serializable;

use crate::Failure;
use crate::case::Case;
use crate::keys::{self, Picks};
use crate::limiters::{self, AMPLE, HOUR, PLENTY};
use crate::load::Load;
use crate::names::{ALLOWANCE, ALLOWANCE_256, GOVERNOR, OWN};
use crate::peer::Means;
use crate::stage::Stage;

pub(crate) const CALLERS: usize = 256;
const SIZE: u32 = 100_000;
const TTL: Duration = Duration::from_secs(10);

pub(crate) async fn cases(stage: &Stage) -> Result<Vec<Case>, Failure> {
    if !stage.options.wants(ALLOWANCE_256) {
        return Ok(Vec::new());
    }
    let url = stage.postgres.url();
    let limiter = limiters::connect(&url, Serializable, None).await?;
    let allowance = limiter.allowance((AMPLE, keys::key(ALLOWANCE)), SIZE, TTL)?;
    let governor = RateLimiter::direct(Quota::per_second(NonZeroU32::MAX));
    let mut peers = vec![
        stage.peer(ALLOWANCE, Means::Allowance(allowance)),
        stage.peer(GOVERNOR, Means::Governor(governor)),
        stage.limiter(OWN, &url, Serializable, AMPLE).await?,
    ];
    peers.extend(stage.redis(|redis| redis.bucket(PLENTY, HOUR)));
    let load = |peer| Load { peer, callers: CALLERS, picks: Picks::one(ALLOWANCE_256), allowed: true };
    Ok(peers.into_iter().map(|peer| Case::calls(ALLOWANCE_256, load(peer))).collect())
}
