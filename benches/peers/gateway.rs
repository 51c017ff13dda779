//! The load of a gateway to language models. A request takes from four limits, all or none: its user's requests, and an estimate
//! of its tokens from its user, its team and its model. When the request has ended, the tokens that it did not use are given
//! back. The latency is that of the decision. The users, teams and models are few, so that callers meet on the same rows.
//!
//! This is the load that TensorZero describes in <https://github.com/tensorzero/tensorzero/issues/5663>, with several scopes.

use pg_limiter::Isolation::Serializable;

use crate::Failure;
use crate::case::Case;
use crate::gateway_peer::{Gateway, Requests};
use crate::keys::Picks;
use crate::limiters::{self, HOUR, PLENTY};
use crate::load::{Load, call_each_once};
use crate::names::{GATEWAY, GATEWAY_ONE_KEY, OWN, TENSORZERO};
use crate::peer::Means;
use crate::redis_peer::Redis;
use crate::stage::Stage;

pub(crate) const CALLERS: [usize; 2] = [20, 200];

pub(crate) async fn cases(stage: &Stage) -> Result<Vec<Case>, Failure> {
    let mut cases = Vec::new();
    for (work, users, teams) in [(GATEWAY, 100, 10), (GATEWAY_ONE_KEY, 1, 1)] {
        if stage.options.wants(work) {
            cases.extend(with_keys(stage, work, users, teams).await?);
        }
    }
    Ok(cases)
}

async fn with_keys(stage: &Stage, work: &'static str, users: usize, teams: usize) -> Result<Vec<Case>, Failure> {
    let (requests, users) = Requests::of(work, users, teams);
    let limiter = limiters::connect(&stage.postgres.url(), Serializable, None).await?;
    let tensorzero = Gateway::TensorZero(stage.postgres.pool.clone());
    let mut peers: Vec<_> = [(OWN, Gateway::Own(limiter)), (TENSORZERO, tensorzero)]
        .into_iter()
        .map(|(name, gateway)| stage.peer(name, Means::Gateway(requests.clone(), gateway)))
        .collect();
    let on_redis = |redis: &Redis| Means::Gateway(requests.clone(), Gateway::Redis(redis.buckets(PLENTY, HOUR)));
    peers.extend(stage.redis_peers(on_redis));
    call_each_once(stage, &peers, &users).await?;
    let mut cases = Vec::new();
    for callers in CALLERS {
        let load = |peer| Load { peer, callers, picks: Picks::Uniform(users.clone()), allowed: true };
        cases.extend(peers.iter().cloned().map(|peer| Case::calls(work, load(peer))));
    }
    Ok(cases)
}
