//! The size of the table, in pages, after many decisions on one key. It is measured once, not in every round.

use std::sync::Arc;
use std::time::Duration;

use pg_limiter::Isolation;
use sqlx::PgPool;

use crate::Failure;
use crate::case::{Id, Measured, with_cpu_time};
use crate::keys::{self, Picks};
use crate::limiters::AMPLE;
use crate::load::Load;
use crate::names::{OWN, TABLE_SIZE};
use crate::results::Results;
use crate::stage::Stage;

const CALLERS: usize = 256;
const PAGES: &str = "SELECT pg_relation_size('rate_limit.rate_limits') / current_setting('block_size')::bigint";

pub(crate) async fn measure(stage: &Stage, results: &mut Results) {
    let id = Id::of(TABLE_SIZE, OWN, CALLERS);
    eprintln!("{id}");
    let measured = match decide(stage).await {
        Ok((measured, pages)) => {
            results.table_pages = Some(pages);
            Ok(measured)
        }
        Err(failure) => Err(failure),
    };
    results.add(1, &id, measured);
}

async fn decide(stage: &Stage) -> Result<(Measured, i64), Failure> {
    let url = stage.postgres.database(TABLE_SIZE).await?;
    let peer = stage.limiter(OWN, &url, Isolation::Serializable, AMPLE).await?;
    let picks = Picks::InTurn(Arc::new([keys::key("hot")]), stage.options.size(1_000_000, 2_000));
    let load = Load { peer, callers: CALLERS, picks, allowed: true };
    let measured = with_cpu_time(stage.postgres.processes(), load.run(Duration::ZERO)).await?;
    let pool = PgPool::connect(&url).await?;
    Ok((measured, sqlx::query_scalar(PAGES).fetch_one(&pool).await?))
}
