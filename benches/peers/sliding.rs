//! Compares a sliding window that logs every hit with pg-limiter's counters, with 10,000 hits in the window.

use pg_limiter::Isolation;

use crate::Failure;
use crate::case::Case;
use crate::keys::{PREFIX, Picks};
use crate::limiters;
use crate::load::Load;
use crate::names::{COUNTER, LOG, SLIDING};
use crate::peer::Means;
use crate::stage::Stage;

const HITS: u32 = 10_000;
const KEY: &str = "sliding";
/// The numbers of callers that each peer is measured with.
pub(crate) const CALLERS: [usize; 2] = [1, 32];

pub(crate) async fn cases(stage: &Stage) -> Result<Vec<Case>, Failure> {
    if !stage.options.wants(SLIDING) {
        return Ok(Vec::new());
    }
    let pool = &stage.postgres.pool;
    let log = stage.peer(LOG, Means::SlidingLog(pool.clone()));
    let counter = stage.limiter(COUNTER, &stage.postgres.url(), Isolation::Serializable, limiters::SLIDING).await?;
    // The log's hits are spread over the window, so that about as many expire as the callers add. The cost of the counters
    // does not depend on the number of hits.
    let hits = format!(
        "TRUNCATE log;
         INSERT INTO log SELECT '{PREFIX}{KEY}', now() - make_interval(secs => {window} * n / {HITS}.0)
         FROM generate_series({HITS}, 1, -1) AS n;
         ANALYZE log;",
        window = limiters::WINDOW.as_secs()
    );
    let load =
        |peer: &_, callers| Load { peer: std::sync::Arc::clone(peer), callers, picks: Picks::one(KEY), allowed: true };
    let both = |callers| {
        [
            Case::calls_after(SLIDING, load(&log, callers), Some((pool.clone(), hits.clone()))),
            Case::calls(SLIDING, load(&counter, callers)),
        ]
    };
    Ok(CALLERS.into_iter().flat_map(both).collect())
}
