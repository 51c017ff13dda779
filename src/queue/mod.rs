//! A rate-limited queue: tokens are reserved now, and the job runs when they are there.
//!
//! Enqueueing takes the reservation and writes the job in one transaction, yours or the queue's own: both or neither. It
//! answers when the job will run. Workers start each job at its time and not before, in order within its group, and never
//! more of a group than its limits allow: whatever is late, retried or taken over from a worker that died.
//!
//! ```no_run
//! use std::time::Duration;
//! use pg_limiter::queue::{Finish, Job, Queue, WorkerConfig, handler_fn};
//! use pg_limiter::{Limit, Limiter, Limits};
//!
//! # async fn f(pool: sqlx::PgPool) -> Result<(), Box<dyn std::error::Error>> {
//! // 10 role updates in 10 seconds for each guild, evenly.
//! let limits = Limits::new().define("roles", Limit::token_bucket(10, Duration::from_secs(10)).capacity(1))?;
//! let queue = Queue::new(&Limiter::new(pool.clone(), limits), "role_updates")?;
//!
//! let mut tx = pool.begin().await?;
//! sqlx::query("UPDATE members SET role = 'vip' WHERE id = 7").execute(&mut *tx).await?;
//! let ticket = queue.within(&mut tx).enqueue(Job::new(("roles", "guild-1"), &"member-7")?).await?.enforce()?;
//! tx.commit().await?;
//! println!("job {} runs in {:?}", ticket.id, ticket.wait);
//!
//! let worker = queue.worker(WorkerConfig::default(), handler_fn(|job, tx| Box::pin(async move {
//!     let member: String = job.payload()?;
//!     // Call the third party; then what is written here commits together with the job's completion.
//!     sqlx::query("INSERT INTO updates (member) VALUES ($1)").bind(member).execute(&mut *tx).await?;
//!     Ok(Finish::Done)
//! })))?;
//! worker.run(async { tokio::signal::ctrl_c().await.unwrap_or_default() }).await?;
//! # Ok(()) }
//! ```
//!
//! # The time of a job
//! Its reservation is taken like that of [`Call::reserve`](crate::Call::reserve), from the same buckets: calls of the limiter
//! on the same limit and key see it. A start also takes its tokens from a second bucket of the limit, whose name ends in
//! `/started`. So where workers were away for a while, or a job is tried again, the group starts at the rate of its limit
//! and not all at once; jobs that wait for that stand in line. Keep in mind that only starts are held to it: what the
//! limiter lets through directly, on the same limit and key, counts in the reservations only.
//!
//! A token bucket of capacity 1 paces evenly, which suits a third party that counts in windows; give the network some room by
//! a rate slightly below theirs. A sliding window cannot reserve, and is no limit for a job.
//!
//! # What runs how often
//! What a handler writes through its transaction happens once: the transaction commits together with the job's completion,
//! and only if the worker still has the job. What it does elsewhere happens at least once: a worker that dies, or loses the
//! database for longer than its lease, leaves the job to another one.

mod bell;
mod config;
mod counts;
mod crew;
mod enqueue;
mod enqueued;
mod gathered;
#[cfg(feature = "metrics")]
mod gauges;
mod handler;
mod info;
mod job;
mod leases;
mod mean;
mod own;
mod queue;
mod queues;
mod run;
mod time;
mod upkeep;
mod within;
mod worker;

pub use config::{QueueConfig, WorkerConfig};
pub use counts::GroupCounts;
pub use enqueued::{EnqueueOutcome, Enqueued, Estimate, Ticket};
pub use handler::{BoxError, Finish, Handler, HandlerFn, RunningJob, handler_fn};
pub use info::{JobInfo, JobItem, JobState};
pub use job::Job;
pub use queue::Queue;
pub use queues::{JobFilter, Queues};
pub use within::QueueWithin;
pub use worker::{Worker, WorkerReport};
