//! Reads the lines of files of any size: plain or compressed, from a file, standard input or memory.

mod bad_lines;
mod cause;
mod lines;

pub(crate) use bad_lines::{BadLine, BadLines, LineArgs};
pub(crate) use cause::of_record;
pub(crate) use lines::{Line, Lines, Source};
