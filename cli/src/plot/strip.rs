//! Draws the two parts of a panel: the calls, and the balance below them.

use plotters::backend::DrawingBackend;

use crate::plot::axes::{AmountAxis, TimeAxis};
use crate::plot::bins::{Bins, length_name};
use crate::plot::canvas::{Canvas, Failure, Side};
use crate::plot::panel::{Bar, Panel};
use crate::plot::style;
use crate::text::tokens;

/// Selects tokens of a bar.
type Tokens = fn(&Bar) -> f64;

#[derive(Clone, Copy, Debug)]
pub(super) struct Frame {
    pub(super) left: f64,
    pub(super) right: f64,
    pub(super) top: f64,
    pub(super) height: f64,
}

impl Frame {
    pub(super) const fn bottom(&self) -> f64 {
        self.top + self.height
    }

    const fn middle(&self) -> f64 {
        (self.left + self.right) / 2.0
    }

    fn x(&self, bins: Bins, at: i64) -> f64 {
        let part = (at as f64 - bins.from as f64) / (bins.end() as f64 - bins.from as f64);
        self.left + part * (self.right - self.left)
    }

    fn y(&self, axis: &AmountAxis, amount: f64) -> f64 {
        self.bottom() - (amount - axis.least) / (axis.most - axis.least) * self.height
    }
}

/// A part of a panel while it is drawn.
pub(super) struct Strip<'a, B: DrawingBackend> {
    pub(super) canvas: &'a Canvas<'a, B>,
    pub(super) frame: Frame,
    pub(super) panel: &'a Panel,
    pub(super) time: &'a TimeAxis,
}

impl<B: DrawingBackend> Strip<'_, B> {
    pub(super) fn draw_traffic(&self) -> Result<(), Failure<B>> {
        let Self { canvas, frame, panel, .. } = *self;
        let series = &panel.series;
        let (what, closest) = (panel.counted(), if series.of_ones { 1.0 } else { 0.0 });
        let axis = AmountAxis::holding(series.bars.iter().map(Bar::offered), 4, closest);
        self.draw_grid(&axis, &format!("{what} per {}", length_name(series.bins.width)))?;
        // Each area reaches up to the sum of all below it. The highest is drawn first.
        let areas: [(Tokens, Tokens, _); 4] = [
            (|bar| bar.denied_elsewhere, Bar::offered, style::DENIED_ELSEWHERE),
            (|bar| bar.denied, |bar| bar.admitted + bar.reserved + bar.denied, style::DENIED),
            (|bar| bar.reserved, |bar| bar.admitted + bar.reserved, style::RESERVED),
            (|bar| bar.admitted, |bar| bar.admitted, style::ADMITTED),
        ];
        for (part, height, colour) in areas {
            if series.bars.iter().any(|bar| part(bar) > 0.0) {
                let mut outline = self.steps_of(&axis, height);
                outline.extend([(frame.right, frame.bottom()), (frame.left, frame.bottom())]);
                canvas.area(&outline, colour)?;
            }
        }
        canvas.line(&self.steps_of(&axis, Bar::offered), style::OFFERED)?;
        if series.calls == 0 {
            let middle = (frame.middle(), frame.top + frame.height / 2.0);
            canvas.text("no calls", middle, Side::Around, style::TITLE, style::INK)?;
        }
        self.draw_axes(frame.bottom())
    }

    pub(super) fn draw_balance(&self) -> Result<(), Failure<B>> {
        let Self { canvas, frame, panel, .. } = *self;
        let (line, capacity) = (panel.balance_line(), panel.capacity());
        let closest = if panel.has_slots() { 1.0 } else { 0.0 };
        let axis = AmountAxis::holding(line.iter().map(|(_, value)| *value).chain([capacity]), 2, closest);
        self.draw_grid(&axis, panel.balance_name())?;
        let point = |(at, value): &(i64, f64)| (frame.x(panel.series.bins, *at), frame.y(&axis, *value));
        let points: Vec<(f64, f64)> = line.iter().map(point).collect();
        let zero = frame.y(&axis, 0.0);
        canvas.area_to(&points, zero, style::BELOW_BALANCE)?;
        let top = frame.y(&axis, capacity);
        canvas.line(&[(frame.left, top), (frame.right, top)], style::CAPACITY)?;
        self.draw_axes(zero)?;
        canvas.line(&points, style::BALANCE)?;
        let label = format!("capacity {}", tokens(capacity));
        canvas.text(&label, (frame.right, top - 3.0), Side::LeftOf, style::LABEL, style::INK)
    }

    /// Draws the labels of the time axis.
    pub(super) fn draw_times(&self) -> Result<(), Failure<B>> {
        let Self { canvas, frame, panel, time } = *self;
        for (at, name) in &time.marks {
            let place = (frame.x(panel.series.bins, *at), frame.bottom() + 16.0);
            canvas.text(name, place, Side::Around, style::LABEL, style::INK)?;
        }
        canvas.text(&time.title, (frame.middle(), frame.bottom() + 36.0), Side::Around, style::LABEL, style::INK)
    }

    /// The outline of the bars: two points for each.
    fn steps_of(&self, axis: &AmountAxis, height: Tokens) -> Vec<(f64, f64)> {
        let series = &self.panel.series;
        let edge = |place| self.frame.x(series.bins, series.bins.start(place));
        let bars = series.bars.iter().enumerate();
        bars.flat_map(|(place, bar)| {
            let y = self.frame.y(axis, height(bar));
            [(edge(place), y), (edge(place + 1), y)]
        })
        .collect()
    }

    fn draw_grid(&self, axis: &AmountAxis, title: &str) -> Result<(), Failure<B>> {
        let Self { canvas, frame, panel, time } = *self;
        for (amount, name) in &axis.marks {
            let y = frame.y(axis, *amount);
            canvas.line(&[(frame.left, y), (frame.right, y)], style::GRID)?;
            canvas.text(name, (frame.left - 6.0, y + 4.0), Side::LeftOf, style::LABEL, style::INK)?;
        }
        for (at, _) in &time.marks {
            let x = frame.x(panel.series.bins, *at);
            canvas.line(&[(x, frame.top), (x, frame.bottom())], style::GRID)?;
        }
        canvas.text_upwards(title, (20.0, frame.top + frame.height / 2.0), style::LABEL, style::INK)
    }

    fn draw_axes(&self, zero: f64) -> Result<(), Failure<B>> {
        let Frame { left, right, top, .. } = self.frame;
        self.canvas.line(&[(left, top), (left, self.frame.bottom())], style::AXIS)?;
        self.canvas.line(&[(left, zero), (right, zero)], style::AXIS)
    }
}
