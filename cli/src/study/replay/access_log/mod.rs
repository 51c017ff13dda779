//! Reads access logs of web servers: their formats, and the keys of requests. It does no I/O, and no input makes it panic.

mod format;
mod json;
mod key;
mod pattern;
mod servers;
#[cfg(test)]
mod tests;

pub use format::{LogFormat, LogLine};

pub(in crate::study::replay) use format::of_known_format;
pub(in crate::study::replay) use key::LogKey;
pub(crate) use key::LogOptions;
