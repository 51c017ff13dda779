//! Draws what limits do over time: a panel for each limit, stacked on one time axis.

mod axes;
mod file;
mod panel;
mod picture;

pub(crate) use axes::{Bins, Clock, SECOND, finer};
pub(crate) use file::PlotArgs;
pub(crate) use panel::{Bar, Panel};
pub(crate) use picture::Picture;
