//! Reads the lines of files of any size: plain or compressed, from a file, standard input or memory.

mod bad_lines;
mod bound;
mod cause;
mod compressed;
mod counted;
mod lines;
mod source;

pub(crate) use bad_lines::{BadLine, BadLines};
pub(crate) use cause::{of_encoding, of_record};
pub(crate) use lines::{Line, Lines};

pub(crate) use bound::LineArgs;
pub(crate) use source::Source;
