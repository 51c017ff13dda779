//! Allowances: tokens that are taken many at once and spent from memory.

mod allowance;
mod give_back;
mod refill;
mod shared;
mod tokens;

pub use allowance::Allowance;
