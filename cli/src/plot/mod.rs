//! Draws what limits do over time: a panel for each limit, stacked on one time axis.

mod amount;
mod args;
mod bins;
mod canvas;
mod clock;
mod file;
mod font;
mod panel;
mod picture;
mod series;
mod steps;
mod strip;
mod style;

pub(super) use args::PlotArgs;
pub(super) use bins::{Bins, resolution};
pub(super) use clock::Clock;
pub(super) use panel::Panel;
pub(super) use picture::Picture;
pub(super) use series::{Bar, Became};
