//! Batches of 128 calls on random keys of a large table: `_decide_sums`, and the barest UPDATE of as many rows.

use sqlx::{Connection, PgConnection};

use crate::Failure;
use crate::case::Case;
use crate::keys::{self, Picks};
use crate::limiters::PLENTY;
use crate::load::Load;
use crate::names::{SUMS, SUMS_OF, SUMS_UPDATES};
use crate::peer::Means;
use crate::stage::Stage;
use crate::sums_peer::Batches;

const HOUR: i64 = 3_600_000_000;

/// The kinds, in the order of [`SUMS_OF`].
const KINDS: [&str; 3] = ["token_bucket", "fixed_window", "sliding_window"];

/// Takes one token from each bucket, and counts the buckets that covered it.
fn decide_sums(kind: &str) -> String {
    format!(
        "SELECT count(balance) FROM unnest(rate_limit._decide_sums(ARRAY['{kind}'], ARRAY[{PLENTY}::float8], ARRAY[{HOUR}],
           NULL, NULL, NULL, array_fill('{kind}'::text, ARRAY[cardinality($1)]), $1, NULL,
           array_fill(1::float8, ARRAY[cardinality($1)]), NULL, NULL, NULL, NULL)) AS balance"
    )
}

fn update(kind: &str) -> String {
    format!(
        "WITH updated AS (
           UPDATE rate_limit.rate_limits AS r SET value = r.value - 1
           FROM unnest($1::text[]) AS asked (key)
           WHERE r.name = ANY (ARRAY['{kind}, bare']) AND r.key = asked.key AND r.shard = 0
           RETURNING r.value
         )
         SELECT count(*) FROM updated"
    )
}

pub(crate) async fn cases(stage: &Stage) -> Result<Vec<Case>, Failure> {
    if !stage.options.wants(SUMS) {
        return Ok(Vec::new());
    }
    let url = stage.postgres.database(SUMS).await?;
    let keys = keys::numbered(stage.options.size(100_000, 1_000));
    let mut cases = Vec::new();
    for (place, kind) in KINDS.into_iter().enumerate() {
        let own = Batches::new(&url, decide_sums(kind), keys.clone()).await?;
        let mut sorted: Vec<&str> = keys.iter().map(|key| &**key).collect();
        sorted.sort_unstable();
        for batch in sorted.chunks(1000) {
            own.take_from(batch).await?;
        }
        // Rows of the same size and in the same table, for the UPDATE.
        let copy = format!(
            "INSERT INTO rate_limit.rate_limits (name, key, value, ts, idle_at, detail)
             SELECT '{kind}, bare', key, value, ts, idle_at, detail FROM rate_limit.rate_limits WHERE name = '{kind}'"
        );
        let bare = Batches::new(&url, update(kind), keys.clone()).await?;
        bare.execute(copy).await?;
        let peers = [(SUMS_UPDATES[place], bare), (SUMS_OF[place], own)];
        for (name, batches) in peers {
            let peer = stage.peer(name, Means::Batches(batches));
            cases.push(Case::calls(SUMS, Load { peer, callers: 1, picks: Picks::one("batch"), allowed: true }));
        }
    }
    let mut connection = PgConnection::connect(&url).await?;
    sqlx::raw_sql("VACUUM ANALYZE rate_limit.rate_limits").execute(&mut connection).await?;
    Ok(cases)
}
