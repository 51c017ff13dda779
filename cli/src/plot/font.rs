//! The letters of pictures in pixels come with the tool: no font has to be installed. An SVG has its texts as text.

use plotters::style::{FontStyle, register_font};

use crate::error::CliError;

/// A generic family: every viewer of an SVG has one.
pub(super) const FAMILY: &str = "sans-serif";

pub(super) fn register() -> Result<(), CliError> {
    register_font(FAMILY, FontStyle::Normal, notosans::REGULAR_TTF)
        .map_err(|_| CliError::failed("the font of the pictures cannot be read"))
}
