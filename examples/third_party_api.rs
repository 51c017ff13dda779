//! Calls a third party's API that allows 10 requests in 10 seconds for each group and answers 429 to the rest. A queue
//! runs 300 jobs for 3 groups without a single 429.
//!
//!     cargo run --features embedded --example third_party_api
//!
//! It runs in a temporary database: on the server in `DATABASE_URL`, or on a private PostgreSQL if that is not set. It
//! takes about 100 seconds. The third party is an HTTP server in this process. It counts the requests of each group in the
//! last 10 seconds exactly, which is the strictest way to count them.

#[cfg(not(test))]
mod common;

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use axum::Router;
use axum::extract::{Path, State};
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use axum::routing::post;
use pg_limiter::queue::{BoxError, Finish, Job, Queue, WorkerConfig, handler_fn};
use pg_limiter::{Limit, Limiter, Limits};
use sqlx::PgPool;

/// The number of requests that the third party allows each group within `WINDOW`.
pub(crate) const REQUESTS: usize = 10;
pub(crate) const WINDOW: Duration = Duration::from_secs(10);

/// The period of our own limit: 3 % longer, because some requests take longer to arrive than others.
const PACE: Duration = Duration::from_millis(10_300);

/// The requests of one group, as the third party received them.
#[derive(Clone, Debug, Default)]
pub(crate) struct Seen {
    pub(crate) admitted: Vec<Instant>,
    pub(crate) refused: usize,
    recent: VecDeque<Instant>,
}

impl Seen {
    /// Returns the share of the allowed rate that was used, from the first request to the last.
    pub(crate) fn share(&self) -> f64 {
        match (self.admitted.first(), self.admitted.last()) {
            (Some(first), Some(last)) if self.admitted.len() > 1 => {
                let gaps = (self.admitted.len() - 1) as f64;
                gaps / (last.duration_since(*first).as_secs_f64() / WINDOW.as_secs_f64() * REQUESTS as f64)
            }
            _ => 0.0,
        }
    }
}

type Groups = Arc<Mutex<HashMap<String, Seen>>>;

/// The third party's only route.
async fn update_role(Path(group): Path<String>, State(groups): State<Groups>) -> Response {
    let mut groups = groups.lock().unwrap_or_else(PoisonError::into_inner);
    let (seen, now) = (groups.entry(group).or_default(), Instant::now());
    while seen.recent.front().is_some_and(|at| now.duration_since(*at) >= WINDOW) {
        seen.recent.pop_front();
    }
    if let Some(oldest) = seen.recent.front().filter(|_| seen.recent.len() >= REQUESTS) {
        seen.refused += 1;
        let retry_after = (WINDOW - now.duration_since(*oldest)).as_secs() + 1;
        return (StatusCode::TOO_MANY_REQUESTS, [("Retry-After", retry_after.to_string())]).into_response();
    }
    seen.recent.push_back(now);
    seen.admitted.push(now);
    StatusCode::OK.into_response()
}

/// Enqueues the jobs, runs them, and returns the requests that the third party received.
pub(crate) async fn run(pool: &PgPool, groups: usize, jobs: usize) -> Result<HashMap<String, Seen>, BoxError> {
    let seen = Groups::default();
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await?;
    let address = listener.local_addr()?;
    let router = Router::new().route("/groups/{group}", post(update_role)).with_state(Arc::clone(&seen));
    let server = tokio::spawn(async move { axum::serve(listener, router).await });

    let limits = Limits::new().define("roles", Limit::token_bucket(REQUESTS as f64, PACE).capacity(1))?;
    let queue = Queue::new(&Limiter::new(pool.clone(), limits), "role_updates")?;
    for nth in 0..jobs {
        let group = format!("guild-{}", nth % groups);
        queue.enqueue(Job::new(("roles", group), &format!("member-{nth}"))?).await?.enforce()?;
    }

    let client = reqwest::Client::new();
    let handler = handler_fn(move |job, _tx| {
        let request = client.post(format!("http://{address}/groups/{}", job.group));
        Box::pin(async move {
            let response = request.body(job.payload::<String>()?).send().await?;
            if response.status() == reqwest::StatusCode::TOO_MANY_REQUESTS {
                let header = response.headers().get("Retry-After").and_then(|value| value.to_str().ok());
                let seconds = header.and_then(|value| value.parse().ok()).unwrap_or(WINDOW.as_secs());
                return Ok(Finish::Wait(Duration::from_secs(seconds)));
            }
            response.error_for_status()?;
            Ok(Finish::Done)
        })
    });
    let watched = Arc::clone(&seen);
    let all_admitted = async move {
        loop {
            tokio::time::sleep(Duration::from_millis(100)).await;
            let groups = watched.lock().unwrap_or_else(PoisonError::into_inner);
            if groups.values().map(|seen| seen.admitted.len()).sum::<usize>() >= jobs {
                break;
            }
        }
    };
    let report = queue.worker(WorkerConfig::default(), handler)?.run(all_admitted).await?;
    println!("{} jobs done, {} waits after a 429", report.done, report.waited);
    server.abort();
    let seen = seen.lock().unwrap_or_else(PoisonError::into_inner).clone();
    Ok(seen)
}

#[cfg(not(test))]
#[tokio::main]
async fn main() -> Result<(), BoxError> {
    common::on_a_fresh_database(async |pool| {
        let began = Instant::now();
        let mut groups: Vec<_> = run(pool, 3, 300).await?.into_iter().collect();
        groups.sort_by(|(a, _), (b, _)| a.cmp(b));
        for (group, seen) in groups {
            let (admitted, refused, share) = (seen.admitted.len(), seen.refused, seen.share() * 100.0);
            println!("{group}: {admitted} requests, {refused} responses of 429, {share:.1} % of the allowed rate");
        }
        println!("{:.1} s", began.elapsed().as_secs_f64());
        Ok(())
    })
    .await
}
