//! Runs concurrent callers for a given time.

use std::future::Future;
use std::time::{Duration, Instant};

use crate::Failure;
use crate::names::CALLERS;
use crate::options::Options;

/// Returns the jobs per second. `call` returns how many jobs it enqueued. A warm-up comes first, so that the work done once
/// for each connection is not measured.
pub(crate) async fn per_second<F, C>(options: &Options, call: C) -> Result<f64, Failure>
where
    C: Fn() -> F + Clone + Send + 'static,
    F: Future<Output = Result<usize, Failure>> + Send,
{
    for_a_while(options.time / 2, call.clone()).await?;
    for_a_while(options.time, call).await
}

async fn for_a_while<F, C>(time: Duration, call: C) -> Result<f64, Failure>
where
    C: Fn() -> F + Clone + Send + 'static,
    F: Future<Output = Result<usize, Failure>> + Send,
{
    let began = Instant::now();
    let until = began + time;
    let callers: Vec<_> = (0..CALLERS)
        .map(|_| {
            let call = call.clone();
            tokio::spawn(async move {
                let mut made = 0;
                while Instant::now() < until {
                    made += call().await?;
                }
                Ok::<_, Failure>(made)
            })
        })
        .collect();
    let mut made = 0;
    for caller in callers {
        made += caller.await??;
    }
    Ok(made as f64 / began.elapsed().as_secs_f64())
}
