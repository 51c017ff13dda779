//! A lone caller, callers on one key and on many keys, calls with four limits, and denied calls.

use std::sync::Arc;

use pg_limiter::Isolation::{ReadCommitted, Serializable};
use sqlx::{Connection, PgConnection};
use tokio::sync::Mutex;

use crate::Failure;
use crate::case::Case;
use crate::keys::{self, Picks};
use crate::limiters::{self, AMPLE, CENTURY, HOUR, PLENTY, SPENT};
use crate::load::{Load, call_each_once};
use crate::names::*;
use crate::peer::{Means, Peer};
use crate::stage::Stage;

/// Peers with buckets that are never empty.
struct Ample {
    update: Arc<Peer>,
    seed: Arc<Peer>,
    own: Arc<Peer>,
    read_committed: Arc<Peer>,
    within: Arc<Peer>,
    redis: Vec<Arc<Peer>>,
}

pub(crate) async fn cases(stage: &Stage) -> Result<Vec<Case>, Failure> {
    let wants = |work| stage.options.wants(work);
    let (url, pool) = (stage.postgres.url(), &stage.postgres.pool);
    let within = limiters::connect(&url, Serializable, None).await?;
    let ample = Ample {
        update: stage.peer(UPDATE, Means::Update(pool.clone())),
        seed: stage.peer(SEED, Means::Seed(pool.clone())),
        own: stage.limiter(OWN, &url, Serializable, AMPLE).await?,
        read_committed: stage.limiter(READ_COMMITTED, &url, ReadCommitted, AMPLE).await?,
        within: stage.peer(WITHIN, Means::Within(within, AMPLE.into())),
        redis: stage.redis(|redis| redis.bucket(PLENTY, HOUR)),
    };
    stage.postgres.rows_to_update(["lone", "hot"].map(keys::key)).await?;
    let mut cases = Vec::new();
    if wants(LONE) {
        cases.extend(lone(stage, &ample).await?);
    }
    if wants(HOT) {
        cases.extend(hot(&ample));
    }
    if wants(UNIFORM) || wants(ZIPF) {
        let many = many(stage, &ample).await?;
        cases.extend(many.into_iter().filter(|case| wants(case.id.work)));
    }
    if wants(FOUR) {
        cases.extend(four(stage).await?);
    }
    if wants(DENIED) {
        cases.extend(denied(stage).await?);
    }
    Ok(cases)
}

fn case(work: &'static str, peer: &Arc<Peer>, callers: usize, picks: &Picks) -> Case {
    Case::calls(work, Load { peer: peer.clone(), callers, picks: picks.clone(), allowed: true })
}

async fn lone(stage: &Stage, ample: &Ample) -> Result<Vec<Case>, Failure> {
    let connection = PgConnection::connect(&stage.postgres.url()).await?;
    let update = stage.peer(UPDATE, Means::UpdateAlone(Mutex::new(connection)));
    let peers = [&update, &ample.own, &ample.read_committed, &ample.seed, &ample.within];
    let picks = Picks::one("lone");
    Ok(peers.into_iter().chain(&ample.redis).map(|peer| case(LONE, peer, 1, &picks)).collect())
}

fn hot(ample: &Ample) -> Vec<Case> {
    let collapsing = |callers| -> Vec<&Arc<Peer>> {
        match callers {
            32 => vec![&ample.update, &ample.seed, &ample.within],
            256 => vec![&ample.update],
            _ => vec![],
        }
    };
    let picks = Picks::one("hot");
    let mut cases = Vec::new();
    for callers in [32, 256, 1024] {
        let peers = collapsing(callers).into_iter().chain([&ample.own, &ample.read_committed]).chain(&ample.redis);
        cases.extend(peers.map(|peer| case(HOT, peer, callers, &picks)));
    }
    cases
}

/// Calls on keys that all have rows already.
async fn many(stage: &Stage, ample: &Ample) -> Result<Vec<Case>, Failure> {
    let keys = keys::numbered(stage.options.size(100_000, 1_000));
    stage.postgres.rows_to_update(&*keys).await?;
    let peers = [&ample.update, &ample.own, &ample.read_committed].into_iter().chain(&ample.redis);
    let peers: Vec<_> = peers.cloned().collect();
    call_each_once(stage, &peers, &keys).await?;
    // The keys are shuffled, so that the most frequent ones are not neighbours in the table.
    let works = [(UNIFORM, Picks::Uniform(keys.clone())), (ZIPF, Picks::zipf(keys::shuffled(&keys)))];
    let case_of =
        |work, picks: &Picks| -> Vec<Case> { peers.iter().map(|peer| case(work, peer, 256, picks)).collect() };
    Ok(works.iter().flat_map(|(work, picks)| case_of(work, picks)).collect())
}

async fn four(stage: &Stage) -> Result<Vec<Case>, Failure> {
    let url = stage.postgres.url();
    let one = stage.limiter(ONE_LIMIT, &url, Serializable, limiters::FOUR[0]).await?;
    let limiter = limiters::connect(&url, Serializable, None).await?;
    let four = stage.peer(FOUR_LIMITS, Means::Several(limiter, Box::new(limiters::FOUR.map(Into::into))));
    Ok([(one, "one"), (four, "four")].map(|(peer, key)| case(FOUR, &peer, 1, &Picks::one(key))).into())
}

async fn denied(stage: &Stage) -> Result<Vec<Case>, Failure> {
    let (url, pool) = (stage.postgres.url(), &stage.postgres.pool);
    let mut peers = vec![
        stage.peer(UPDATE, Means::Update(pool.clone())),
        stage.limiter(OWN, &url, Serializable, SPENT).await?,
        stage.limiter(READ_COMMITTED, &url, ReadCommitted, SPENT).await?,
    ];
    peers.extend(stage.redis(|redis| redis.bucket(1.0, CENTURY)));
    let remembering = stage.remembering(REMEMBERED, SPENT).await?;
    let key = keys::key("spent");
    sqlx::query("INSERT INTO plain VALUES ($1, 1)").bind(&*key).execute(pool).await?;
    for peer in peers.iter().chain([&remembering]) {
        peer.decide(&key).await?; // takes the only token
    }
    let picks = Picks::one("spent");
    let denied = |(peer, callers)| Case::calls(DENIED, Load { peer, callers, picks: picks.clone(), allowed: false });
    Ok(peers.into_iter().map(|peer| (peer, 256)).chain([(remembering, 1)]).map(denied).collect())
}
