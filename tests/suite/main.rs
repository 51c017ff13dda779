//! One binary, one server, a database for each test.
#![allow(unreachable_pub)]
mod model;
mod sql_sources;
