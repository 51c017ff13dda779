//! Draws the two parts of a panel: the calls, and the balance below them.

use plotters::backend::DrawingBackend;

use crate::plot::amount::AmountAxis;
use crate::plot::bins::Bins;
use crate::plot::canvas::{Canvas, Failure, Side};
use crate::plot::panel::Panel;
use crate::plot::series::{Bar, Series};
use crate::plot::time_axis::TimeAxis;
use crate::plot::{steps, style};
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

    pub(super) fn x(&self, bins: Bins, at: i64) -> f64 {
        let part = (at as f64 - bins.from as f64) / (bins.end() as f64 - bins.from as f64);
        self.left + part * (self.right - self.left)
    }

    fn y(&self, axis: &AmountAxis, amount: f64) -> f64 {
        self.bottom() - (amount - axis.least) / (axis.most - axis.least) * self.height
    }
}

pub(super) fn draw_traffic<B: DrawingBackend>(
    canvas: &Canvas<'_, B>,
    frame: Frame,
    panel: &Panel,
    time: &TimeAxis,
) -> Result<(), Failure<B>> {
    let series = &panel.series;
    let (what, closest) = (panel.counted(), if series.of_ones { 1.0 } else { 0.0 });
    let axis = AmountAxis::holding(series.bars.iter().map(Bar::offered), 4, closest);
    draw_grid(canvas, frame, &axis, series.bins, time, &format!("{what} per {}", steps::name(series.bins.width)))?;
    // Each area reaches up to the sum of all below it. The highest is drawn first.
    let areas: [(Tokens, Tokens, _); 4] = [
        (|bar| bar.denied_elsewhere, Bar::offered, style::DENIED_ELSEWHERE),
        (|bar| bar.denied, |bar| bar.admitted + bar.reserved + bar.denied, style::DENIED),
        (|bar| bar.reserved, |bar| bar.admitted + bar.reserved, style::RESERVED),
        (|bar| bar.admitted, |bar| bar.admitted, style::ADMITTED),
    ];
    for (part, height, colour) in areas {
        if series.bars.iter().any(|bar| part(bar) > 0.0) {
            let mut outline = steps_of(frame, &axis, series, height);
            outline.extend([(frame.right, frame.bottom()), (frame.left, frame.bottom())]);
            canvas.area(&outline, colour)?;
        }
    }
    canvas.line(&steps_of(frame, &axis, series, Bar::offered), style::OFFERED)?;
    if series.calls == 0 {
        let middle = ((frame.left + frame.right) / 2.0, frame.top + frame.height / 2.0);
        canvas.text("no calls", middle, Side::Around, style::TITLE, style::INK)?;
    }
    draw_axes(canvas, frame, frame.bottom())
}

pub(super) fn draw_balance<B: DrawingBackend>(
    canvas: &Canvas<'_, B>,
    frame: Frame,
    panel: &Panel,
    time: &TimeAxis,
) -> Result<(), Failure<B>> {
    let (line, capacity) = (panel.balance_line(), panel.limit.capacity());
    let closest = if panel.has_slots() { 1.0 } else { 0.0 };
    let axis = AmountAxis::holding(line.iter().map(|(_, value)| *value).chain([capacity]), 2, closest);
    let bins = panel.series.bins;
    draw_grid(canvas, frame, &axis, bins, time, panel.balance_name())?;
    let points: Vec<(f64, f64)> = line.iter().map(|(at, value)| (frame.x(bins, *at), frame.y(&axis, *value))).collect();
    let zero = frame.y(&axis, 0.0);
    canvas.area_to(&points, zero, style::BELOW_BALANCE)?;
    let top = frame.y(&axis, capacity);
    canvas.line(&[(frame.left, top), (frame.right, top)], style::CAPACITY)?;
    draw_axes(canvas, frame, zero)?;
    canvas.line(&points, style::BALANCE)?;
    let label = format!("capacity {}", tokens(capacity));
    canvas.text(&label, (frame.right, top - 3.0), Side::LeftOf, style::LABEL, style::INK)
}

/// The outline of the bars: two points for each.
fn steps_of(frame: Frame, axis: &AmountAxis, series: &Series, height: Tokens) -> Vec<(f64, f64)> {
    let edge = |place| frame.x(series.bins, series.bins.start(place));
    let bars = series.bars.iter().enumerate();
    bars.flat_map(|(place, bar)| {
        let y = frame.y(axis, height(bar));
        [(edge(place), y), (edge(place + 1), y)]
    })
    .collect()
}

fn draw_grid<B: DrawingBackend>(
    canvas: &Canvas<'_, B>,
    frame: Frame,
    axis: &AmountAxis,
    bins: Bins,
    time: &TimeAxis,
    title: &str,
) -> Result<(), Failure<B>> {
    for (amount, name) in &axis.marks {
        let y = frame.y(axis, *amount);
        canvas.line(&[(frame.left, y), (frame.right, y)], style::GRID)?;
        canvas.text(name, (frame.left - 6.0, y + 4.0), Side::LeftOf, style::LABEL, style::INK)?;
    }
    for (at, _) in &time.marks {
        let x = frame.x(bins, *at);
        canvas.line(&[(x, frame.top), (x, frame.bottom())], style::GRID)?;
    }
    canvas.text_upwards(title, (20.0, frame.top + frame.height / 2.0), style::LABEL, style::INK)
}

fn draw_axes<B: DrawingBackend>(canvas: &Canvas<'_, B>, frame: Frame, zero: f64) -> Result<(), Failure<B>> {
    canvas.line(&[(frame.left, frame.top), (frame.left, frame.bottom())], style::AXIS)?;
    canvas.line(&[(frame.left, zero), (frame.right, zero)], style::AXIS)
}
