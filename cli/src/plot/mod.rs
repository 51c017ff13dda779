//! Draws what limits do over time: a panel for each limit, stacked on one time axis.

mod axes;
mod bins;
mod canvas;
mod file;
mod panel;
mod picture;
mod style;

pub(super) use axes::Clock;
pub(super) use bins::{Bins, SECOND, finer};
pub(super) use file::PlotArgs;
pub(super) use panel::{Bar, Became, Panel, balance_line};
pub(super) use picture::Picture;
