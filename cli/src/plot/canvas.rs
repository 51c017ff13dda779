//! Draws lines, areas and texts. Coordinates are in displayed pixels; drawing is finer than that.

use plotters::backend::DrawingBackend;
use plotters::coord::Shift;
use plotters::drawing::{DrawingArea, DrawingAreaErrorKind};
use plotters::element::{PathElement, Polygon, Rectangle, Text};
use plotters::style::text_anchor::{HPos, Pos, VPos};
use plotters::style::{Color, FontTransform, IntoFont, IntoTextStyle, RGBColor, ShapeStyle, TextStyle};

/// A generic font family, which every SVG viewer supports.
pub(super) const FAMILY: &str = "sans-serif";

/// Drawn pixels per displayed pixel, in each direction.
pub(super) const FINENESS: u32 = 2;
/// The font size that plotters takes, relative to the usual font size.
const PLOTTERS_SIZE: f64 = 1.24;

pub(super) type Failure<B> = DrawingAreaErrorKind<<B as DrawingBackend>::ErrorType>;

pub(super) struct Canvas<'a, B: DrawingBackend> {
    pub(super) area: &'a DrawingArea<B, Shift>,
    /// The height of the baseline above the lower end of a text, as a part of its size. It differs between backends.
    pub(super) rise: f64,
    /// Whether wide lines are drawn one segment at a time: in bitmaps, plotters leaves gaps at sharp corners.
    pub(super) in_segments: bool,
}

/// The position of a text relative to its point.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Side {
    RightOf,
    Around,
    LeftOf,
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Pen {
    pub(super) colour: RGBColor,
    /// In drawn pixels.
    pub(super) width: u32,
}

impl<B: DrawingBackend> Canvas<'_, B> {
    pub(super) fn fill(&self, colour: RGBColor) -> Result<(), Failure<B>> {
        self.area.fill(&colour)
    }

    pub(super) fn line(&self, points: &[(f64, f64)], pen: Pen) -> Result<(), Failure<B>> {
        let style = ShapeStyle { color: pen.colour.to_rgba(), filled: false, stroke_width: pen.width };
        let points = thinned(points);
        if !self.in_segments || pen.width == 1 {
            return self.area.draw(&PathElement::new(points, style));
        }
        points.windows(2).try_for_each(|ends| self.area.draw(&PathElement::new(ends.to_vec(), style)))
    }

    pub(super) fn area(&self, points: &[(f64, f64)], colour: RGBColor) -> Result<(), Failure<B>> {
        let points: Vec<(i32, i32)> = points.iter().copied().map(fine).collect();
        self.area.draw(&Polygon::new(points, colour.filled()))
    }

    /// Fills the area between a line and the height `y`.
    pub(super) fn area_to(&self, line: &[(f64, f64)], y: f64, colour: RGBColor) -> Result<(), Failure<B>> {
        let mut outline = thinned(line);
        if let (Some(first), Some(last)) = (line.first(), line.last()) {
            outline.extend([fine((last.0, y)), fine((first.0, y))]);
        }
        self.area.draw(&Polygon::new(outline, colour.filled()))
    }

    pub(super) fn rectangle(&self, corners: [(f64, f64); 2], colour: RGBColor) -> Result<(), Failure<B>> {
        self.area.draw(&Rectangle::new(corners.map(fine), colour.filled()))
    }

    /// Draws a text. `at` is a point of its baseline.
    pub(super) fn text(
        &self,
        text: &str,
        at: (f64, f64),
        side: Side,
        size: f64,
        colour: RGBColor,
    ) -> Result<(), Failure<B>> {
        let anchor = match side {
            Side::RightOf => HPos::Left,
            Side::Around => HPos::Center,
            Side::LeftOf => HPos::Right,
        };
        let style = self.style(size, colour).pos(Pos::new(anchor, VPos::Bottom));
        self.area.draw(&Text::new(text.to_owned(), fine((at.0, at.1 + self.rise * size)), style))
    }

    /// Draws a text that reads upwards, centred at this point.
    pub(super) fn text_upwards(
        &self,
        text: &str,
        at: (f64, f64),
        size: f64,
        colour: RGBColor,
    ) -> Result<(), Failure<B>> {
        let style =
            self.style(size, colour).transform(FontTransform::Rotate270).pos(Pos::new(HPos::Center, VPos::Bottom));
        self.area.draw(&Text::new(text.to_owned(), fine((at.0 + self.rise * size, at.1)), style))
    }

    /// The approximate width of a text.
    pub(super) fn width(&self, text: &str, size: f64) -> Result<f64, Failure<B>> {
        let (width, _) = self.area.estimate_text_size(text, &self.style(size, plotters::style::BLACK))?;
        Ok(f64::from(width) / f64::from(FINENESS))
    }

    fn style(&self, size: f64, colour: RGBColor) -> TextStyle<'static> {
        let size = size * PLOTTERS_SIZE * f64::from(FINENESS);
        (FAMILY, size).into_font().color(&colour).into_text_style(self.area)
    }
}

fn fine((x, y): (f64, f64)) -> (i32, i32) {
    let fine = |length: f64| (length * f64::from(FINENESS)).round() as i32;
    (fine(x), fine(y))
}

/// Removes points that lie on the line between their neighbours.
fn thinned(points: &[(f64, f64)]) -> Vec<(i32, i32)> {
    let mut kept: Vec<(i32, i32)> = Vec::with_capacity(points.len());
    for point in points.iter().copied().map(fine) {
        if kept.last() == Some(&point) {
            continue;
        }
        if let [.., before, last] = kept[..]
            && is_between(before, last, point)
        {
            kept.pop();
        }
        kept.push(point);
    }
    kept
}

fn is_between((ax, ay): (i32, i32), (bx, by): (i32, i32), (cx, cy): (i32, i32)) -> bool {
    let (x, y) = (i64::from(bx - ax), i64::from(by - ay));
    let (next_x, next_y) = (i64::from(cx - bx), i64::from(cy - by));
    x * next_y == y * next_x && x * next_x + y * next_y > 0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_straight_line_is_reduced_to_two_points() {
        let points = [(0.0, 0.0), (1.0, 1.0), (1.1, 1.1), (2.0, 2.0), (2.0, 5.0), (2.0, 4.0)];
        assert_eq!(thinned(&points), [(0, 0), (4, 4), (4, 10), (4, 8)]);
    }
}
