//! The font for PNG files. It is built into the tool, so no font has to be installed. SVG files contain texts as text.

use plotters::style::{FontStyle, register_font};

use crate::error::CliError;

/// A generic font family, which every SVG viewer supports.
pub(super) const FAMILY: &str = "sans-serif";

pub(super) fn register() -> Result<(), CliError> {
    register_font(FAMILY, FontStyle::Normal, notosans::REGULAR_TTF)
        .map_err(|_| CliError::failed("cannot read the built-in font for pictures"))
}
