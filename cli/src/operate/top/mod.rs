//! The command `top`: the limits, keys and queues of a database in use, in a terminal.

mod app;
mod columns;
mod screen;
#[cfg(test)]
mod tests;
mod top;

pub(crate) use top::{TOP_EXIT_CODES, TopArgs, run};
