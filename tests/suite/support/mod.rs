//! Shared by the tests: a server, a pooler in front of it, a database for each test, raw calls of the deciding function,
//! recorded traces, and fault injection.

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
#[cfg(any(feature = "axum", feature = "reqwest"))]
pub mod web;
pub mod yugabyte;

pub use database::{Database, limiter_at, server_config};
pub use events::{Events, watch};
pub use function::{Answer, Step, decide};
pub use node::Node;
pub use process::process;
pub use spans::Spans;
pub use starts::{estimated, scheduled};
