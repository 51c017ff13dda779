//! Compares calls on new keys, on an empty table, with calls on the same keys again.

use pg_limiter::Isolation::{ReadCommitted, Serializable};
use sqlx::PgPool;

use crate::Failure;
use crate::case::Case;
use crate::keys::{self, Picks};
use crate::limiters::AMPLE;
use crate::load::Load;
use crate::names::{FIRST_TOUCH, NEW_KEYS, NEW_KEYS_READ_COMMITTED, WARM_KEYS, WARM_KEYS_READ_COMMITTED};
use crate::stage::Stage;

pub(crate) const CALLERS: usize = 256;

pub(crate) async fn cases(stage: &Stage) -> Result<Vec<Case>, Failure> {
    if !stage.options.wants(FIRST_TOUCH) {
        return Ok(Vec::new());
    }
    let url = stage.postgres.database("first_touch").await?;
    let empty = Some((PgPool::connect(&url).await?, "TRUNCATE rate_limit.rate_limits".to_owned()));
    // The keys are shuffled, because inserting them in the order of the index would be faster.
    let picks = Picks::each_once(keys::shuffled(&keys::numbered(stage.options.size(100_000, 1_000))));
    let passes = [
        (NEW_KEYS, Serializable, empty.clone()),
        (WARM_KEYS, Serializable, None),
        (NEW_KEYS_READ_COMMITTED, ReadCommitted, empty),
        (WARM_KEYS_READ_COMMITTED, ReadCommitted, None),
    ];
    let mut cases = Vec::new();
    for (name, isolation, before) in passes {
        let peer = stage.limiter(name, &url, isolation, AMPLE).await?;
        let load = Load { peer, callers: CALLERS, picks: picks.clone(), allowed: true };
        cases.push(Case::calls_after(FIRST_TOUCH, load, before));
    }
    Ok(cases)
}
