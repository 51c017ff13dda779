//! Reads access logs of web servers: their formats, and the keys of requests. It does no I/O, and no input makes it panic.

mod collector;
pub(in crate::study::replay) mod format;
mod json;
pub(in crate::study::replay) mod key;
pub(in crate::study::replay) mod line;
mod pattern;
mod servers;
#[cfg(test)]
mod tests;
