//! A rate-limited queue: enqueueing reserves the tokens, and the job runs when they are available.
//!
//! Enqueueing takes the reservation and writes the job in one transaction, yours or the queue's own: both or neither. It
//! returns the time at which the job will run. Workers start each job at its time and never earlier, in order within its
//! group, and never faster than the group's limits allow. This also holds for jobs that are late, retried, or taken over
//! from a worker that died.
//!
//! ```no_run
//! use std::time::Duration;
//! use pg_limiter::queue::{Finish, Job, Queue, WorkerConfig, handler_fn, stop_signal};
//! use pg_limiter::{Limit, Limiter, Limits};
//!
//! # async fn f(pool: sqlx::PgPool) -> Result<(), Box<dyn std::error::Error>> {
//! // 10 role updates in 10 seconds for each guild, evenly spaced.
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
//!     // Call the third party here. Writes through `tx` commit together with the job's completion.
//!     sqlx::query("INSERT INTO updates (member) VALUES ($1)").bind(member).execute(&mut *tx).await?;
//!     Ok(Finish::Done)
//! })))?;
//! worker.run(stop_signal()).await?; // SIGTERM or Ctrl-C
//! # Ok(()) }
//! ```
//!
//! # When a job starts
//! A job belongs to a group: its first key, unless [`Job::group`] sets another one. Jobs of a group start in the order of
//! their reservations.
//!
//! Enqueueing reserves from the same buckets as [`Call::reserve`](crate::Call::reserve), so direct calls of the limiter on
//! the same limit and key see the reservation. A start also takes its tokens from a second bucket of the limit, named
//! with the suffix `/started`. So if workers were stopped for a while, or a job is retried, the group starts at the rate of its
//! limit and not all at once. Jobs that wait for this second bucket are [`JobState::Available`]. It counts starts only:
//! calls that the limiter allows directly, on the same limit and key, take nothing from it.
//!
//! A token bucket of capacity 1 spaces starts evenly, which suits a third party that counts in windows. Allow for network
//! delays with a rate slightly below theirs. A sliding window cannot reserve, so a job cannot use one.
//!
//! # How many jobs run at once
//! A [concurrency limit](crate::Limit::concurrency) among a job's limits bounds how many jobs of a key run at the same time,
//! over all workers: see [`Job`](Job#slots).
//!
//! ```no_run
//! use std::time::Duration;
//! use pg_limiter::queue::{Job, Queue};
//! use pg_limiter::{Limit, Limiter, Limits};
//!
//! # async fn f(pool: sqlx::PgPool) -> Result<(), Box<dyn std::error::Error>> {
//! // Two exports of a customer run at the same time.
//! let limits = Limits::new().define("exports", Limit::concurrency(2).lease(Duration::from_secs(60)))?;
//! let queue = Queue::new(&Limiter::new(pool, limits), "exports")?;
//! for year in 2020..2026 {
//!     queue.enqueue(Job::new(("exports", "customer-1"), &year)?).await?.enforce()?;
//! }
//! # Ok(()) }
//! ```
//!
//! # Exactly once in the database, at least once elsewhere
//! Writes through the handler's transaction happen exactly once: the transaction commits together with the job's
//! completion, and only if the worker still has the job. Any other effect of a handler happens at least once: if a worker
//! dies, or cannot reach the database for longer than its lease, another worker runs the job again.

mod answers;
mod config;
mod context;
mod counts;
mod enqueue;
mod enqueue_batcher;
mod enqueued;
#[cfg(feature = "metrics")]
mod gauges;
mod handler;
mod hold;
mod info;
mod job;
mod job_leases;
mod job_run;
mod job_slots;
mod moving_average;
mod queue;
mod queues;
mod running_jobs;
mod stop_signal;
mod time;
mod upkeep;
mod within;
mod worker;
mod worker_loop;

pub use config::{QueueConfig, WorkerConfig};
pub use counts::GroupCounts;
pub use enqueued::{EnqueueOutcome, Enqueued, Estimate, EstimateOutcome, Ticket};
pub use handler::{BoxError, Finish, Handler, HandlerFn, RunningJob, handler_fn};
pub use info::{InvalidJobState, JobInfo, JobItem, JobState};
pub use job::Job;
pub use queue::Queue;
pub use queues::{JobFilter, Queues};
pub use stop_signal::stop_signal;
pub use within::QueueWithin;
pub use worker::{Worker, WorkerReport};
