//! Made-up traffic on a private server, on limits of every kind and on a queue.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use tokio::task::JoinSet;

use crate::{CliError, Result, Running};
use pg_limiter::queue::{Finish, Job, Queue, WorkerConfig, handler_fn};
use pg_limiter::{Item, Limiter, Limits};

const CONNECTIONS: u32 = 8;
pub(super) const LIMITS: &str = include_str!("demo.toml");

/// Starts the traffic. Dropping it stops it.
pub(super) async fn start(running: &Running, limits: Limits) -> Result<(JoinSet<()>, Limiter)> {
    let limiter = running.limiter_on(running.ready_pool(CONNECTIONS).await?, limits, None);
    let mut tasks = JoinSet::new();
    tasks.spawn(calls(limiter.clone()));
    tasks.spawn(reports(limiter.clone()));
    tasks.spawn(blocks(limiter.clone()));
    let queue = Queue::new(&limiter, "webhooks").map_err(CliError::usage)?;
    tasks.spawn(jobs(queue.clone()));
    let mut config = WorkerConfig::default();
    config.concurrency = 3;
    let worker = queue.worker(config, handler_fn(|job, _tx| Box::pin(handle(job.id)))).map_err(CliError::usage)?;
    tasks.spawn(async move {
        let _ = worker.run(std::future::pending()).await;
    });
    Ok((tasks, limiter))
}

/// One of `of` names. The first ones are much more frequent.
fn popular(of: &[&'static str]) -> &'static str {
    let place = (fastrand::f64().powi(3) * of.len() as f64) as usize;
    of[place.min(of.len() - 1)]
}

const USERS: [&str; 12] =
    ["alice", "bob", "carol", "dan", "erin", "frank", "grace", "heidi", "ivan", "judy", "mallory", "peggy"];
const TEAMS: [&str; 5] = ["acme", "globex", "initech", "umbrella", "hooli"];

/// A failed call is not repeated: the page shows what is wrong.
async fn calls(limiter: Limiter) {
    loop {
        let user = popular(&USERS);
        let team = popular(&TEAMS);
        let tokens = fastrand::u32(50..2_000);
        // The last number: one call in so many rounds.
        for (limit, key, count, rounds) in [
            ("api", user, 1, 1),
            ("search", user, 1, 4),
            ("password_resets", user, 1, 12),
            ("llm_tokens", team, tokens, 3),
        ] {
            if fastrand::u8(..rounds) == 0 {
                let _ = limiter.limit(Item::new(limit, key).count(count)).await;
            }
        }
        for _ in 0..fastrand::u8(..6) {
            let _ = limiter.limit(Item::global("ingest")).await;
        }
        let _ = limiter.check(("banned", "203.0.113.7")).await;
        // Faster and slower, in waves of two minutes.
        let seconds = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs_f64();
        let wave = (seconds / 19.0).sin();
        tokio::time::sleep(Duration::from_millis((45.0 + 30.0 * wave) as u64 + fastrand::u64(..40))).await;
    }
}

async fn reports(limiter: Limiter) {
    let mut running = JoinSet::new();
    loop {
        let limiter = limiter.clone();
        running.spawn(async move {
            let acquired = limiter.acquire(("reports", popular(&TEAMS))).await;
            if let Ok(Ok(lease)) = acquired.map(|acquired| acquired.into_lease()) {
                tokio::time::sleep(Duration::from_millis(fastrand::u64(3_000..15_000))).await;
                let _ = lease.release().await;
            }
        });
        while running.try_join_next().is_some() {}
        tokio::time::sleep(Duration::from_millis(fastrand::u64(700..2_000))).await;
    }
}

async fn blocks(limiter: Limiter) {
    loop {
        let address = format!("203.0.113.{}", fastrand::u8(1..30));
        let _ = limiter.block(("banned", address.as_str()), Duration::from_secs(fastrand::u64(30..600))).await;
        tokio::time::sleep(Duration::from_secs(fastrand::u64(4..15))).await;
    }
}

async fn jobs(queue: Queue) {
    for number in 0_u64.. {
        if let Ok(job) = Job::new(("webhooks", popular(&TEAMS)), &format!("event {number}")) {
            let _ = queue.enqueue(job.max_attempts(2)).await;
        }
        tokio::time::sleep(Duration::from_millis(fastrand::u64(200..700))).await;
    }
}

async fn handle(job: i64) -> Result<Finish, pg_limiter::queue::BoxError> {
    tokio::time::sleep(Duration::from_millis(fastrand::u64(50..400))).await;
    match job % 23 {
        7 => Ok(Finish::GiveUp("410 Gone: the receiver has unsubscribed".to_owned())),
        11 => Err("503 Service Unavailable".into()),
        _ => Ok(Finish::Done),
    }
}
