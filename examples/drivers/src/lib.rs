//! Limits through `limit_all_with`, with three other drivers for PostgreSQL. Each module has the same three functions:
//!
//! - `limit` takes tokens on the connection that it is given: in autocommit or in the caller's transaction.
//! - `limit_alone` takes tokens in a transaction of its own, and runs it again after a conflict.
//! - `post` writes a message and takes its tokens in one transaction: both or neither.
//!
//! `shared` has the parts that do not depend on the driver. The tests show what each function does:
//!
//!     cargo test --manifest-path examples/drivers/Cargo.toml

pub mod diesel_async;
pub mod sea_orm;
pub mod shared;
pub mod tokio_postgres;
