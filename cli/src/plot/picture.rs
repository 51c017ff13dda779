//! The layout of a picture: a heading with the legend, the panels, and the time axis at the bottom. A panel has two parts: the
//! calls, and the balance below them.

use plotters::backend::DrawingBackend;

use crate::plot::axes::{AmountAxis, Clock, TimeAxis};
use crate::plot::bins::{Bins, length_name};
use crate::plot::canvas::{Canvas, Failure, Side};
use crate::plot::panel::{Bar, Panel};
use crate::plot::style;
use crate::text::{grouped, one_line, percent_of, shortened, tokens};

#[derive(Clone, Debug)]
pub(crate) struct Picture {
    pub(crate) heading: String,
    pub(crate) clock: Clock,
    /// One or more panels with the same bins.
    pub(crate) panels: Vec<Panel>,
}

const WIDTH: u32 = 900;
const LEFT: f64 = 66.0;
const RIGHT: f64 = 872.0;
const HEAD: u32 = 66;
const TITLE: u32 = 24;
const TRAFFIC: u32 = 112;
const GAP: u32 = 14;
const BALANCE: u32 = 62;
const AFTER: u32 = 22;
const FOOT: u32 = 30;

impl Picture {
    pub(super) fn size(&self) -> (u32, u32) {
        (WIDTH, HEAD + self.panels.iter().map(height).sum::<u32>() + FOOT)
    }

    pub(super) fn draw<B: DrawingBackend>(&self, canvas: &Canvas<'_, B>) -> Result<(), Failure<B>> {
        canvas.fill(style::PAPER)?;
        let heading = fitting(canvas, &self.heading, style::HEADING, RIGHT - 12.0)?;
        canvas.text(&heading, (12.0, 24.0), Side::RightOf, style::HEADING, style::INK)?;
        self.legend(canvas)?;
        let mut top = f64::from(HEAD);
        for (place, panel) in self.panels.iter().enumerate() {
            let time = TimeAxis::new(self.clock, panel.series.bins);
            titles(canvas, panel, top)?;
            let frame = Frame { left: LEFT, right: RIGHT, top: top + f64::from(TITLE), height: f64::from(TRAFFIC) };
            let mut strip = Strip { canvas, frame, panel, time: &time };
            strip.draw_traffic()?;
            if panel.has_balance {
                strip.frame = Frame { top: frame.bottom() + f64::from(GAP), height: f64::from(BALANCE), ..frame };
                strip.draw_balance()?;
            }
            top += f64::from(height(panel));
            // The panels share the time axis below the last one.
            if place + 1 == self.panels.len() && panel.series.calls > 0 {
                strip.draw_times()?;
            }
        }
        Ok(())
    }

    /// Draws the legend of the elements that the picture contains.
    fn legend<B: DrawingBackend>(&self, canvas: &Canvas<'_, B>) -> Result<(), Failure<B>> {
        const BASE: f64 = 48.0;
        const SAMPLE: f64 = 18.0;
        let any = |tokens: fn(&Bar) -> f64| {
            self.panels.iter().flat_map(|panel| &panel.series.bars).any(|bar| tokens(bar) > 0.0)
        };
        let areas = [
            ("admitted", style::ADMITTED, true),
            ("reserved: admitted after a wait", style::RESERVED, any(|bar| bar.reserved)),
            ("denied", style::DENIED, true),
            ("denied by another limit", style::DENIED_ELSEWHERE, any(|bar| bar.denied_elsewhere)),
        ];
        let mut names: Vec<&str> =
            self.panels.iter().filter(|panel| panel.has_balance).map(Panel::balance_name).collect();
        names.sort_unstable();
        names.dedup();
        let (balance, names) = (!names.is_empty(), names.join(", "));
        let lines = [
            ("offered", style::OFFERED, true),
            (&*names, style::BALANCE, balance),
            ("capacity", style::CAPACITY, balance),
        ];
        // Draws a name, and returns the position of the next entry.
        let named = |name: &str, x: f64| {
            canvas.text(name, (x + 6.0, BASE), Side::RightOf, style::LABEL, style::INK)?;
            Ok::<_, Failure<B>>(x + 6.0 + canvas.width(name, style::LABEL)? + 22.0)
        };
        let mut x = 12.0;
        for (name, colour, _) in areas.into_iter().filter(|(.., there)| *there) {
            canvas.rectangle([(x, BASE - 10.0), (x + SAMPLE, BASE + 1.0)], colour)?;
            x = named(name, x + SAMPLE)?;
        }
        for (name, pen, _) in lines.into_iter().filter(|(.., there)| *there) {
            canvas.line(&[(x, BASE - 4.0), (x + SAMPLE, BASE - 4.0)], pen)?;
            x = named(name, x + SAMPLE)?;
        }
        Ok(())
    }
}

const fn height(panel: &Panel) -> u32 {
    TITLE + TRAFFIC + AFTER + if panel.has_balance { GAP + BALANCE } else { 0 }
}

fn titles<B: DrawingBackend>(canvas: &Canvas<'_, B>, panel: &Panel, top: f64) -> Result<(), Failure<B>> {
    let base = top + f64::from(TITLE) - 10.0;
    let totals = totals(panel);
    canvas.text(&totals, (RIGHT, base), Side::LeftOf, style::LABEL, style::INK)?;
    let room = RIGHT - LEFT - canvas.width(&totals, style::LABEL)? - 16.0;
    let title = fitting(canvas, &panel.title(), style::TITLE, room)?;
    canvas.text(&title, (LEFT, base), Side::RightOf, style::TITLE, style::INK)
}

/// The totals of a panel: `offered 600, admitted 110 (18.3 %), denied 490`.
fn totals(panel: &Panel) -> String {
    let sum = |of: fn(&Bar) -> f64| panel.series.bars.iter().map(of).sum::<f64>();
    let (offered, admitted) = (sum(Bar::offered), sum(|bar| bar.admitted + bar.reserved));
    let mut text = format!(
        "offered {}, admitted {} ({} %), denied {}",
        many(offered),
        many(admitted),
        percent_of(admitted, offered),
        many(sum(|bar| bar.denied))
    );
    let elsewhere = sum(|bar| bar.denied_elsewhere);
    if elsewhere > 0.0 {
        text.push_str(&format!(", by another limit {}", many(elsewhere)));
    }
    text
}

/// Formats an amount: `20,000`, `2.5`.
fn many(amount: f64) -> String {
    if amount.fract() == 0.0 && (0.0..1e15).contains(&amount) { grouped(amount as u64) } else { tokens(amount) }
}

/// Shortens a text to the available width.
fn fitting<B: DrawingBackend>(canvas: &Canvas<'_, B>, text: &str, size: f64, room: f64) -> Result<String, Failure<B>> {
    let text = one_line(text);
    let mut letters = text.chars().count().min(200);
    loop {
        let text = shortened(&text, letters);
        let width = canvas.width(&text, size)?;
        if width <= room || letters <= 8 {
            return Ok(text);
        }
        letters = ((letters as f64 * room / width) as usize).min(letters - 1);
    }
}

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
