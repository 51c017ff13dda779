//! Reads access logs of web servers: their formats, and the keys of requests. It does no I/O, and no input makes it panic.

mod apache;
mod format;
mod key;
mod line;
mod nginx;
mod pattern;
#[cfg(test)]
mod tests;
mod time;

pub use format::{LogFormat, UnreadableLine};
pub use line::LogLine;

#[cfg(test)]
use key::ClientArgs;
pub(in crate::replay) use key::LogKey;
pub(crate) use key::LogOptions;
