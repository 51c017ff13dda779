//! For tests: a clock of the database that you advance. Turn the feature `testing` on only in `[dev-dependencies]`.
//!
//! ```no_run
//! # async fn f(pool: sqlx::PgPool, limiter: pg_limiter::Limiter) -> Result<(), Box<dyn std::error::Error>> {
//! use std::time::Duration;
//! use pg_limiter::Schema;
//! use pg_limiter::testing::TestClock;
//!
//! let minutes = Duration::from_secs(60);
//! let clock = TestClock::install(&pool, &Schema::default()).await?;
//! limiter.limit(("login", "u1")).await?.enforce()?;
//! clock.advance(15 * minutes).await?;
//! # Ok(()) }
//! ```

mod error;
mod test_clock;

pub use error::TestClockError;
pub use test_clock::TestClock;
