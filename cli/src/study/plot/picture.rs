//! The layout of a picture: a heading with the legend, the panels, and the time axis at the bottom. A panel has two charts: the
//! calls, and the balance below them. Lengths are in drawn pixels, of which [`FINENESS`] are a displayed one.

use std::collections::BTreeSet;

use plotters::coord::Shift;
use plotters::coord::combinators::WithKeyPoints;
use plotters::coord::types::{RangedCoordf64, RangedCoordi64};
use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};
use unicode_width::UnicodeWidthStr;

use crate::study::plot::axes::{Clock, TimeAxis, length_name, marks, short, time_axis};
use crate::study::plot::panel::{Bar, Panel};
use crate::text::{grouped, one_line, percent_of, shortened, tokens};

pub(crate) struct Picture {
    pub(crate) heading: String,
    pub(crate) clock: Clock,
    /// One or more panels with the same bins.
    pub(crate) panels: Vec<Panel>,
}

/// Drawn pixels per displayed pixel, in each direction.
pub(super) const FINENESS: u32 = 2;
const WIDTH: i32 = 1800;
const MARGIN: i32 = 24;
const LEFT: i32 = 132;
const RIGHT: i32 = 1744;
const HEAD: i32 = 132;
const TITLE: i32 = 48;
const UPPER: i32 = 224;
const GAP: i32 = 28;
const LOWER: i32 = 124;
const AFTER: i32 = 44;
const FOOT: i32 = 40;

// The areas differ in lightness, for print in black and white, and in hue: colour-blind readers see blue and orange.
const INK: RGBColor = RGBColor(0x22, 0x22, 0x22);
const GRID: ShapeStyle = line(RGBColor(0xe2, 0xe2, 0xe2), 1);
const AXIS: ShapeStyle = line(RGBColor(0x55, 0x55, 0x55), 2);

const ADMITTED: ShapeStyle = area(RGBColor(0x1b, 0x5e, 0x91));
const RESERVED: ShapeStyle = area(RGBColor(0x6f, 0xae, 0xd9));
const DENIED: ShapeStyle = area(RGBColor(0xf8, 0xc9, 0x83));
const DENIED_ELSEWHERE: ShapeStyle = area(RGBColor(0xe9, 0xe9, 0xe9));
const OFFERED: ShapeStyle = line(RGBColor(0x8a, 0x4b, 0x08), 2);
const BALANCE: ShapeStyle = line(INK, 3);
const BELOW_BALANCE: ShapeStyle = area(RGBColor(0xec, 0xec, 0xec));
const CAPACITY: ShapeStyle = line(RGBColor(0x99, 0x99, 0x99), 2);

/// A generic font family, which every SVG viewer supports.
pub(super) const FAMILY: &str = "sans-serif";
/// The font size that plotters takes, relative to the usual font size.
const PLOTTERS_SIZE: f64 = 1.24;
/// Sizes of texts, in displayed pixels.
const LARGE: f64 = 15.0;
const MEDIUM: f64 = 13.0;
const SMALL: f64 = 11.0;

type Area<B> = DrawingArea<B, Shift>;
type Chart<'a, B> = ChartContext<'a, B, Cartesian2d<WithKeyPoints<RangedCoordi64>, RangedCoordf64>>;
pub(super) type Drawn<B, T = ()> = Result<T, DrawingAreaErrorKind<<B as DrawingBackend>::ErrorType>>;

impl Picture {
    pub(super) fn size(&self) -> (u32, u32) {
        let height = HEAD + self.panels.iter().map(height).sum::<i32>() + FOOT;
        (WIDTH.unsigned_abs(), height.unsigned_abs())
    }

    /// In bitmaps, plotters leaves gaps at the sharp corners of wide lines, and draws texts a little higher.
    pub(super) fn draw<B: DrawingBackend>(&self, area: &Area<B>, is_bitmap: bool) -> Drawn<B> {
        area.fill(&WHITE)?;
        let heading = fitting(area, &self.heading, LARGE, RIGHT - MARGIN)?;
        text(area, &heading, (MARGIN, 40), HPos::Left, LARGE)?;
        self.draw_legend(area)?;
        let has_calls = self.panels.iter().any(|panel| panel.calls > 0);
        let mut top = HEAD;
        for (place, panel) in self.panels.iter().enumerate() {
            let (totals, middle) = (totals(panel), top + TITLE - 26);
            let room = RIGHT - LEFT - width(area, &totals, SMALL)? - 32;
            text(area, &totals, (RIGHT, middle), HPos::Right, SMALL)?;
            text(area, &fitting(area, &panel.title, MEDIUM, room)?, (LEFT, middle), HPos::Left, MEDIUM)?;
            // The panels share the time axis below the last one.
            let has_times = place + 1 == self.panels.len() && has_calls;
            let strip = Strip { area, panel, time: time_axis(self.clock, panel.bins), is_bitmap };
            strip.draw_traffic(top + TITLE, has_times && !panel.has_balance())?;
            if panel.has_balance() {
                strip.draw_balance(top + TITLE + UPPER + GAP, has_times)?;
            }
            top += height(panel);
        }
        area.present()
    }

    fn draw_legend<B: DrawingBackend>(&self, area: &Area<B>) -> Drawn<B> {
        const MIDDLE: i32 = 88;
        let any = |part: Tokens| self.panels.iter().flat_map(|panel| &panel.bars).any(|bar| part(bar) > 0.0);
        let names: BTreeSet<&str> =
            self.panels.iter().filter(|panel| panel.has_balance()).map(Panel::balance_name).collect();
        let (has_balance, names) = (!names.is_empty(), Vec::from_iter(names).join(", "));
        let entries = [
            ("admitted", ADMITTED, true),
            ("reserved: admitted after a wait", RESERVED, any(|bar| bar.reserved)),
            ("denied", DENIED, true),
            ("denied by another limit", DENIED_ELSEWHERE, any(|bar| bar.denied_elsewhere)),
            ("offered", OFFERED, true),
            (&*names, BALANCE, has_balance),
            ("capacity", CAPACITY, has_balance),
        ];
        let mut left = MARGIN;
        for (name, style, _) in entries.into_iter().filter(|(.., is_drawn)| *is_drawn) {
            let right = left + 36;
            if style.filled {
                area.draw(&Rectangle::new([(left, MIDDLE - 11), (right, MIDDLE + 11)], style))?;
            } else {
                area.draw(&PathElement::new([(left, MIDDLE), (right, MIDDLE)], style))?;
            }
            text(area, name, (right + 12, MIDDLE), HPos::Left, SMALL)?;
            left = right + 12 + width(area, name, SMALL)? + 44;
        }
        Ok(())
    }
}

fn height(panel: &Panel) -> i32 {
    TITLE + UPPER + AFTER + if panel.has_balance() { GAP + LOWER } else { 0 }
}

/// The totals of a panel: `offered 600, admitted 110 (18.3 %), denied 490`.
fn totals(panel: &Panel) -> String {
    let sum = |of: Tokens| panel.bars.iter().map(of).sum::<f64>();
    let (offered, admitted, denied) = (sum(Bar::offered), sum(Bar::passed), sum(|bar| bar.denied));
    let percent = percent_of(admitted, offered);
    let totals =
        format!("offered {}, admitted {} ({percent} %), denied {}", many(offered), many(admitted), many(denied));
    match sum(|bar| bar.denied_elsewhere) {
        0.0 => totals,
        elsewhere => format!("{totals}, by another limit {}", many(elsewhere)),
    }
}

fn many(amount: f64) -> String {
    if amount.fract() == 0.0 && (0.0..1e15).contains(&amount) { grouped(amount as u64) } else { tokens(amount) }
}

/// Draws a text. `at` is a point at half its height.
fn text<B: DrawingBackend>(area: &Area<B>, text: &str, at: (i32, i32), anchor: HPos, size: f64) -> Drawn<B> {
    area.draw_text(text, &text_style(size, anchor, VPos::Center), at)
}

/// The approximate width of a text. The built-in font has no wide characters, and estimates them as narrow.
fn width<B: DrawingBackend>(area: &Area<B>, text: &str, size: f64) -> Drawn<B, i32> {
    let wide = text.width().saturating_sub(text.chars().count()) as f64;
    let estimate = area.estimate_text_size(text, &text_style(size, HPos::Left, VPos::Center))?.0;
    Ok(estimate as i32 + (wide * 0.4 * size * f64::from(FINENESS)) as i32)
}

fn fitting<B: DrawingBackend>(area: &Area<B>, text: &str, size: f64, room: i32) -> Drawn<B, String> {
    let text = one_line(text);
    let mut letters = text.width().min(200);
    while letters > 8 && width(area, &shortened(&text, letters), size)? > room {
        letters -= 1;
    }
    Ok(shortened(&text, letters))
}

/// Rounds the amounts of a line to this unit, and leaves out the points within its level parts.
fn levelled(points: Vec<(i64, f64)>, unit: f64) -> Vec<(i64, f64)> {
    let mut kept: Vec<(i64, f64)> = Vec::with_capacity(points.len());
    for (at, amount) in points {
        let amount = (amount / unit).round() * unit;
        if let [.., (_, before), (_, last)] = kept[..]
            && [before, last] == [amount; 2]
        {
            kept.pop();
        }
        kept.push((at, amount));
    }
    kept
}

const fn line(RGBColor(red, green, blue): RGBColor, stroke_width: u32) -> ShapeStyle {
    ShapeStyle { color: RGBAColor(red, green, blue, 1.0), filled: false, stroke_width }
}

const fn area(colour: RGBColor) -> ShapeStyle {
    ShapeStyle { filled: true, ..line(colour, 1) }
}

fn text_style(size: f64, horizontal: HPos, vertical: VPos) -> TextStyle<'static> {
    let style = TextStyle::from((FAMILY, size * PLOTTERS_SIZE * f64::from(FINENESS)));
    style.color(&INK).pos(Pos::new(horizontal, vertical))
}

type Tokens = fn(&Bar) -> f64;

struct Strip<'a, B: DrawingBackend> {
    area: &'a Area<B>,
    panel: &'a Panel,
    time: TimeAxis,
    is_bitmap: bool,
}

impl<'a, B: DrawingBackend> Strip<'a, B> {
    fn draw_traffic(&self, top: i32, has_times: bool) -> Drawn<B> {
        let panel = self.panel;
        let title = format!("{} per {}", panel.counted(), length_name(panel.bins.width));
        let amounts = marks(panel.bars.iter().map(Bar::offered), 4, if panel.of_ones { 1.0 } else { 0.0 });
        let mut chart = self.chart((top, UPPER), &amounts, &title, has_times)?;
        // Each area reaches up to the sum of all below it. The highest is drawn first.
        let areas: [(Tokens, Tokens, _); 4] = [
            (|bar| bar.denied_elsewhere, Bar::offered, DENIED_ELSEWHERE),
            (|bar| bar.denied, |bar| bar.passed() + bar.denied, DENIED),
            (|bar| bar.reserved, Bar::passed, RESERVED),
            (|bar| bar.admitted, |bar| bar.admitted, ADMITTED),
        ];
        for (part, height, colour) in areas {
            if panel.bars.iter().any(|bar| part(bar) > 0.0) {
                chart.draw_series(AreaSeries::new(self.steps_of(height), 0.0, colour))?;
            }
        }
        self.line(&chart, &self.steps_of(Bar::offered), OFFERED)?;
        if panel.calls == 0 {
            text(self.area, "no calls", ((LEFT + RIGHT) / 2, top + UPPER / 2), HPos::Center, MEDIUM)?;
        }
        self.line(&chart, &self.level(0.0), AXIS)
    }

    fn draw_balance(&self, top: i32, has_times: bool) -> Drawn<B> {
        let (line, capacity) = (self.panel.balance_line(), self.panel.limit.capacity());
        let closest = if self.panel.has_slots() { 1.0 } else { 0.0 };
        let amounts = marks(line.iter().map(|(_, value)| *value).chain([capacity]), 2, closest);
        let line = levelled(line, (amounts[amounts.len() - 1] - amounts[0]) / f64::from(LOWER));
        let mut chart = self.chart((top, LOWER), &amounts, self.panel.balance_name(), has_times)?;
        chart.draw_series(AreaSeries::new(line.iter().copied(), 0.0, BELOW_BALANCE))?;
        self.line(&chart, &self.level(capacity), CAPACITY)?;
        self.line(&chart, &self.level(0.0), AXIS)?;
        self.line(&chart, &line, BALANCE)?;
        let style = text_style(SMALL, HPos::Right, VPos::Bottom);
        let at = (self.panel.bins.end(), capacity);
        chart.plotting_area().draw(&Text::new(format!("capacity {}", tokens(capacity)), at, style))
    }

    /// A chart with its grid and axes, from the first of these amounts to the last.
    fn chart(&self, rows: (i32, i32), amounts: &[f64], title: &str, has_times: bool) -> Drawn<B, Chart<'a, B>> {
        let (top, height) = rows;
        let (bins, foot) = (self.panel.bins, if has_times { AFTER + FOOT } else { 0 });
        let (title_of_time, marks) = &self.time;
        let area = self.area.clone().shrink((MARGIN, top), (RIGHT - MARGIN, height + foot));
        let times = (bins.from..bins.end()).with_key_points(marks.keys().copied().collect());
        let mut chart = ChartBuilder::on(&area)
            .y_label_area_size(LEFT - MARGIN)
            .x_label_area_size(foot)
            .build_cartesian_2d(times, amounts[0]..amounts[amounts.len() - 1])?;
        let (name_time, name_amount) = (|at: &i64| marks[at].clone(), |amount: &f64| short(*amount));
        let mut mesh = chart.configure_mesh();
        mesh.label_style(text_style(SMALL, HPos::Left, VPos::Top)).set_all_tick_mark_size(6);
        mesh.bold_line_style(GRID).max_light_lines(0).axis_style(AXIS);
        mesh.x_label_formatter(&name_time).x_desc(title_of_time);
        mesh.y_label_formatter(&name_amount).y_labels(amounts.len()).y_desc(title);
        mesh.y_label_offset(if self.is_bitmap { 4 } else { 0 }).draw()?;
        Ok(chart)
    }

    fn line(&self, chart: &Chart<'_, B>, points: &[(i64, f64)], style: ShapeStyle) -> Drawn<B> {
        let ends = if self.is_bitmap && style.stroke_width > 1 { 2 } else { points.len().max(1) };
        points.windows(ends).try_for_each(|part| chart.plotting_area().draw(&PathElement::new(part, style)))
    }

    fn level(&self, amount: f64) -> [(i64, f64); 2] {
        let bins = self.panel.bins;
        [bins.from, bins.end()].map(|at| (at, amount))
    }

    /// The outline of the bars: two points for each.
    fn steps_of(&self, height: Tokens) -> Vec<(i64, f64)> {
        let bins = self.panel.bins;
        let ends = |(place, bar)| [place, place + 1].map(|edge| (bins.start(edge), height(bar)));
        self.panel.bars.iter().enumerate().flat_map(ends).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_level_part_of_a_line_is_reduced_to_its_ends() {
        let points = [(0, 0.0), (1, 4.1), (2, 3.9), (3, 4.0), (3, 8.0), (4, 4.0)];
        assert_eq!(levelled(points.to_vec(), 0.5), [(0, 0.0), (1, 4.0), (3, 4.0), (3, 8.0), (4, 4.0)]);
    }
}
