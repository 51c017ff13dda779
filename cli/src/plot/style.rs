//! Colours and sizes. The areas differ in lightness, for print in black and white, and in hue: blue and orange are
//! distinguishable for colour-blind readers.

use plotters::style::RGBColor;

use crate::plot::canvas::Pen;

pub(super) const PAPER: RGBColor = RGBColor(0xff, 0xff, 0xff);
pub(super) const INK: RGBColor = RGBColor(0x22, 0x22, 0x22);
pub(super) const GRID: Pen = Pen { colour: RGBColor(0xe2, 0xe2, 0xe2), width: 1 };
pub(super) const AXIS: Pen = Pen { colour: RGBColor(0x55, 0x55, 0x55), width: 2 };

pub(super) const ADMITTED: RGBColor = RGBColor(0x1b, 0x5e, 0x91);
pub(super) const RESERVED: RGBColor = RGBColor(0x6f, 0xae, 0xd9);
pub(super) const DENIED: RGBColor = RGBColor(0xf8, 0xc9, 0x83);
pub(super) const DENIED_ELSEWHERE: RGBColor = RGBColor(0xe9, 0xe9, 0xe9);
pub(super) const OFFERED: Pen = Pen { colour: RGBColor(0x8a, 0x4b, 0x08), width: 2 };
pub(super) const BALANCE: Pen = Pen { colour: INK, width: 3 };
pub(super) const BELOW_BALANCE: RGBColor = RGBColor(0xec, 0xec, 0xec);
pub(super) const CAPACITY: Pen = Pen { colour: RGBColor(0x99, 0x99, 0x99), width: 2 };

/// Sizes of texts, in pixels.
pub(super) const HEADING: f64 = 15.0;
pub(super) const TITLE: f64 = 13.0;
pub(super) const LABEL: f64 = 11.0;
