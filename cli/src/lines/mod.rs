//! Reads the lines of files of any size: plain or compressed, from a file, standard input or memory.

mod bad_lines;
mod lines;

pub(crate) use bad_lines::{BadLine, BadLines, LineArgs, of_record};
pub(crate) use lines::{Line, Lines, Source};
