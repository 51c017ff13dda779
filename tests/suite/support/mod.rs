//! Shared by the tests: a server, a pooler in front of it, a database for each test, raw calls of the deciding function,
//! recorded traces, and fault injection.

pub mod cases;
pub mod citus;
pub mod database;
pub mod events;
pub mod function;
pub mod gate;
#[cfg(all(feature = "axum", feature = "tonic"))]
pub mod grpc;
pub mod guide;
pub mod history;
pub mod node;
pub mod other_role;
pub mod payloads;
pub mod pooler;
pub mod process;
pub mod proxy;
pub mod settings;
pub mod spans;
pub mod sqlx;
pub mod starts;
mod url;
#[cfg(any(feature = "axum", feature = "reqwest"))]
pub mod web;
pub mod yugabyte;

pub use cases::cases;
pub use database::{Database, limiter_at, server_config};
pub use events::{Events, watch};
pub use function::{Answer, Step, decide};
pub use node::Node;
pub use process::{process, signal};
pub use spans::Spans;
pub use starts::{estimated, scheduled};

/// Whether the caller has to repeat its transaction. A test that calls the SQL itself repeats it itself: on a busy machine a first call
/// may be so slow that it counts as a wait.
pub fn is_conflict(error: &pg_limiter::sqlx::Error) -> bool {
    matches!(error, pg_limiter::sqlx::Error::Database(error) if error.code().as_deref() == Some("40001"))
}
