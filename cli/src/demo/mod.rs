//! `demo` shows what the limits do, with real calls.

mod hammer;
mod reservation;
mod run;
mod screen;
mod sliding_window;
mod stage;
mod together;
mod token_bucket;

pub(super) use run::run;
