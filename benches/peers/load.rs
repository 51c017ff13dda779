use std::time::{Duration, Instant};

use crate::peer::Peer;

/// What one peer did in one round.
pub(crate) struct Run {
    pub(crate) peer: &'static str,
    pub(crate) callers: usize,
    pub(crate) per_second: f64,
    pub(crate) p50: Duration,
    pub(crate) p99: Duration,
    /// For each decision.
    pub(crate) retries: f64,
}

/// Each caller decides one call after the other until the time is up.
pub(crate) async fn measure(peer: &Peer, callers: usize, time: Duration) -> Result<Run, Box<dyn std::error::Error>> {
    for _ in 0..20 {
        peer.decide().await.map_err(|error| error.to_string())?;
    }
    let retries = peer.retries();
    let began = Instant::now();
    let caller = || async {
        let mut took = Vec::new();
        while began.elapsed() < time {
            let asked = Instant::now();
            peer.decide().await.map_err(|error| error.to_string())?;
            took.push(asked.elapsed());
        }
        Ok::<_, String>(took)
    };
    let results = at_once((0..callers).map(|_| caller()).collect()).await;
    let elapsed = began.elapsed();
    let mut took = Vec::new();
    for result in results {
        took.extend(result?);
    }
    took.sort_unstable();
    let at = |part: f64| took.get((took.len() as f64 * part) as usize).copied().unwrap_or_default();
    Ok(Run {
        peer: peer.name,
        callers,
        per_second: took.len() as f64 / elapsed.as_secs_f64(),
        p50: at(0.5),
        p99: at(0.99),
        retries: (peer.retries() - retries) as f64 / took.len().max(1) as f64,
    })
}

async fn at_once<F: Future>(futures: Vec<F>) -> Vec<F::Output> {
    let mut running = futures_util::stream::FuturesUnordered::from_iter(futures);
    let mut outputs = Vec::new();
    while let Some(output) = futures_util::StreamExt::next(&mut running).await {
        outputs.push(output);
    }
    outputs
}
