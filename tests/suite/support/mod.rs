//! What the tests share: a server, a database for each test, raw calls of the deciding function, what is traced.

pub mod database;
pub mod events;
pub mod function;
pub mod gate;

pub use database::Database;
pub use events::Events;
pub use function::{Answer, Step, decide};
