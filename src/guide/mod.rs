//! The guide: how to use it, what it promises, and what it costs. All its examples are compiled.
//!
//! - To begin with: [where a call runs](transactions), and the [kinds of limits](kinds)
//! - What it does to the database: [migrations and privileges](migrations), [personal data](personal_data)
//! - When it gets serious: [when things fail](failures), [many callers](many_callers), [shards],
//!   [performance]
//! - Where it runs: [behind a pooler](poolers), [YugabyteDB](yugabytedb)
//! - Around requests: [web services](web); before them: [waiting]
//! - Besides calls from Rust: [the queue](queue), [from SQL](sql), [the tool](tool)
//! - What it does at the moment: [observability](crate::observability)
//! - What else there is: [alternatives]

#[doc = include_str!("alternatives.md")]
pub mod alternatives {}
#[doc = include_str!("failures.md")]
pub mod failures {}
#[doc = include_str!("kinds.md")]
pub mod kinds {}
#[doc = include_str!("many_callers.md")]
pub mod many_callers {}
#[doc = include_str!("migrations.md")]
pub mod migrations {}
#[doc = include_str!("performance.md")]
pub mod performance {}
#[doc = include_str!("personal_data.md")]
pub mod personal_data {}
#[doc = include_str!("poolers.md")]
pub mod poolers {}
#[doc = include_str!("queue.md")]
pub mod queue {}
#[doc = include_str!("shards.md")]
pub mod shards {}
#[doc = include_str!("sql.md")]
pub mod sql {}
#[doc = include_str!("tool.md")]
pub mod tool {}
#[doc = include_str!("transactions.md")]
pub mod transactions {}
#[doc = include_str!("waiting.md")]
pub mod waiting {}
#[doc = include_str!("web.md")]
pub mod web {}
#[doc = include_str!("yugabytedb.md")]
pub mod yugabytedb {}
