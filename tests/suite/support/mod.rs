//! What the tests share: a server, a database for each test, and raw calls of the deciding function.

pub mod database;
pub mod function;
pub mod gate;

pub use database::Database;
pub use function::{Answer, Step, decide};
