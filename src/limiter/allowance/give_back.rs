//! Returns unused tokens of an allowance.

use std::time::Instant;

use sqlx::Connection;

use crate::call::{Item, Op};
use crate::error::Error;
use crate::limit::Kind;
use crate::limiter::Limiter;
use crate::limiter::allowance::tokens::Batch;
use crate::retry::longest;
use crate::sql::PooledConnection;

pub(super) async fn give_back_all(limiter: &Limiter, item: &Item, batches: Vec<Batch>) {
    for batch in batches {
        if let Err(error) = give_back(limiter, item, batch).await {
            tracing::warn!(limit = item.limit_name(), %error, "unused tokens of an allowance were not given back; they stay taken");
        }
    }
}

/// Gives tokens back if they cannot be granted twice. `item` is the allowance's, as given.
pub(super) async fn give_back(limiter: &Limiter, item: &Item, batch: Batch) -> Result<(), Error> {
    let Batch { tokens, window_ends_at, item: taken_from, .. } = batch;
    let is_replaced = item.clone().pinned(&limiter.limits()).inline_limit() != taken_from.inline_limit();
    let is_sliding = taken_from.inline_limit().is_none_or(|limit| limit.kind() == Kind::SlidingWindow);
    let tokens = taken_from.inline_limit().map_or(0.0, |limit| limit.exact_difference(tokens, f64::floor));
    if tokens == 0.0 || is_replaced || is_sliding {
        return Ok(());
    }
    let credit = taken_from.count(tokens).leave(0);
    let Some(window_ends_at) = window_ends_at else {
        return limiter.credit(credit).await.map(|_| ());
    };
    limiter.credit_before(window_ends_at, credit).await
}

impl Limiter {
    /// Gives tokens of a window back if that is certainly done before this time, and else not at all.
    async fn credit_before(&self, end: Instant, credit: Item) -> Result<(), Error> {
        if Instant::now() >= end {
            return Ok(());
        }
        let kept = self.resolve(Op::Credit, credit.clone().into())?;
        let crediting = async {
            let begin = "BEGIN ISOLATION LEVEL READ COMMITTED";
            let unavailable = |source| Error::Unavailable { source };
            let mut connection = PooledConnection::acquire(self.pool()).await.map_err(unavailable)?;
            let mut tx = connection.begin_with(begin).await.map_err(unavailable)?;
            self.within(&mut tx).credit(credit).await?;
            // The row has been written, in a window that has not ended yet. The commit may be later.
            if Instant::now() >= end {
                tx.rollback().await.map_err(unavailable)?;
            } else {
                tx.commit().await.map_err(|last| Error::OutcomeUnknown { last })?;
            }
            connection.release();
            Ok(())
        };
        let deadline = end.min(Instant::now() + longest(self.combiner().transactor.retry.deadline));
        let result = tokio::time::timeout_at(deadline.into(), crediting).await;
        self.discard_denials(&kept);
        match result {
            Ok(result) => result,
            Err(_) if Instant::now() >= end => Ok(()), // The tokens ended with their window.
            Err(elapsed) => Err(Error::OutcomeUnknown { last: std::io::Error::from(elapsed).into() }),
        }
    }
}
