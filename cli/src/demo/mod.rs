//! `demo` shows what the limits do, with real calls.

mod demo;
mod hammer;
mod reservation;
mod screen;
mod sliding_window;
mod stage;
mod together;
mod token_bucket;

pub(super) use demo::{DemoArgs, run};
