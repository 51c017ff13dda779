//! `demo` shows what the limits do, with real calls.

mod demo;
mod scenes;
mod stage;

pub(super) use demo::{DemoArgs, run};
