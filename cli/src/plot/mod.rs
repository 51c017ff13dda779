//! Draws what limits do over time: a panel for each limit, stacked on one time axis.

mod amount;
mod args;
mod bins;
mod canvas;
mod file;
mod panel;
mod picture;
mod series;
mod steps;
mod strip;
mod style;
mod time_axis;

pub(super) use args::PlotArgs;
pub(super) use bins::{Bins, finer};
pub(super) use panel::Panel;
pub(super) use picture::Picture;
pub(super) use series::{Bar, Became};
pub(super) use steps::SECOND;
pub(super) use time_axis::Clock;
