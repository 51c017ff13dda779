//! The callers, which run the same loop for every peer.

use std::sync::Arc;
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};
use tokio::task::JoinSet;

use crate::Failure;
use crate::histogram::Histogram;
use crate::keys::{Keys, Picker, Picks};
use crate::peer::Peer;
use crate::stage::Stage;

/// A time longer than any pass over a finite list of keys.
const UNTIL_THE_KEYS_END: Duration = Duration::from_secs(86_400);

#[derive(Clone, Debug)]
pub(crate) struct Load {
    pub(crate) peer: Arc<Peer>,
    pub(crate) callers: usize,
    pub(crate) picks: Picks,
    /// The expected decision of every call. Any other decision is an error.
    pub(crate) allowed: bool,
}

/// The results of a load's callers.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct Tally {
    pub(crate) latencies: Histogram,
    pub(crate) elapsed: Duration,
    pub(crate) retries: u64,
    pub(crate) emptied: Option<Emptied>,
}

/// The results of emptying a bucket that does not refill.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
pub(crate) struct Emptied {
    pub(crate) admitted: u64,
    /// Denials after which the bucket still had enough tokens for the call.
    pub(crate) false_denials: u64,
}

impl Load {
    /// Makes the first calls of a peer, so that opening connections and preparing statements is not measured.
    pub(crate) async fn warm_up(&self, time: Duration) -> Result<(), Failure> {
        if !self.picks.end() {
            self.run(time / 5).await?;
        }
        Ok(())
    }

    /// Runs the callers, each in its own task. Each makes one call after another until the time is up or the keys end.
    pub(crate) async fn run(&self, time: Duration) -> Result<Tally, Failure> {
        let time = if self.picks.end() { UNTIL_THE_KEYS_END } else { time };
        let pickers = self.picks.for_callers(self.callers);
        let retries = self.peer.retries();
        let began = Instant::now();
        let mut callers = JoinSet::new();
        for picker in pickers {
            callers.spawn(call(self.peer.clone(), picker, self.allowed, began + time));
        }
        let mut latencies = Histogram::default();
        let mut ended = began;
        while let Some(caller) = callers.join_next().await {
            let (of_caller, at) = caller??;
            latencies.add(&of_caller);
            ended = ended.max(at);
        }
        Ok(Tally { latencies, elapsed: ended - began, retries: self.peer.retries() - retries, emptied: None })
    }
}

/// Calls each key once with each of the peers, so that all rows exist before anything is measured.
pub(crate) async fn call_each_once(stage: &Stage, peers: &[Arc<Peer>], keys: &Keys) -> Result<(), Failure> {
    eprintln!("calling each of {} keys once", keys.len());
    for peer in peers {
        let picks = Picks::each_once(keys.clone());
        Load { peer: peer.clone(), callers: 256, picks, allowed: true }.run(Duration::ZERO).await?;
    }
    sqlx::raw_sql("VACUUM ANALYZE").execute(&stage.postgres.pool).await?;
    Ok(())
}

/// Each caller takes tokens until it is denied, and then checks whether the denial was right.
pub(crate) async fn empty(peer: &Arc<Peer>, callers: usize, key: &Arc<str>) -> Result<Emptied, Failure> {
    let mut tasks = JoinSet::new();
    for _ in 0..callers {
        let (peer, key) = (peer.clone(), key.clone());
        tasks.spawn(async move {
            let mut admitted = 0;
            while peer.decide(&key).await? {
                admitted += 1;
            }
            // The tolerance is for rounding.
            Ok::<_, Failure>((admitted, peer.left(&key).await? >= 1.0 - 1e-6))
        });
    }
    let mut emptied = Emptied::default();
    while let Some(task) = tasks.join_next().await {
        let (admitted, wrong) = task??;
        emptied.admitted += admitted;
        emptied.false_denials += u64::from(wrong);
    }
    Ok(emptied)
}

async fn call(
    peer: Arc<Peer>,
    mut picker: Picker,
    allowed: bool,
    end: Instant,
) -> Result<(Histogram, Instant), Failure> {
    let mut latencies = Histogram::default();
    let mut asked = Instant::now();
    while asked < end {
        let Some(key) = picker.pick() else { break };
        if peer.decide(key).await? != allowed {
            return Err(if allowed { "a call was denied" } else { "a call was allowed" }.into());
        }
        let answered = Instant::now();
        latencies.record(answered - asked);
        asked = if peer.settles() {
            peer.settle(key).await?;
            Instant::now()
        } else {
            answered
        };
    }
    Ok((latencies, asked))
}
