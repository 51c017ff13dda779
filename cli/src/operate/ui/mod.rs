//! The command `ui`: a web page that shows a limiter in use. Pages are made here, on the server: they need no script, and no
//! request goes to another server.

mod access;
mod actions;
mod app;
mod chart;
mod demo;
mod format;
mod health_page;
mod key_page;
mod limits_page;
mod page;
mod queue_page;
mod ui;
#[cfg(feature = "study")]
mod what_if;

pub(crate) use ui::{UiArgs, run};
