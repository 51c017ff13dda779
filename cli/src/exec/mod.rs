//! `exec`: runs a command while it holds slots of a concurrency limit.

mod args;
mod exec;
mod once;
mod processes;
#[cfg(unix)]
mod terminal;
mod work;

pub(crate) use args::{EXEC_EXIT_CODES, ExecArgs};
pub(crate) use exec::run;
