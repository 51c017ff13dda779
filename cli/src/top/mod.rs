//! The command `top`: the limits, keys and queues of a database in use, in a terminal.

mod app;
mod args;
mod cells;
mod columns;
mod data;
mod once;
mod screen;
mod terminal;
#[cfg(test)]
mod tests;
mod top;

pub(super) use args::{TOP_EXIT_CODES, TopArgs};
pub(super) use top::run;
