//! Texts for numbers, times and keys, and small SVG pictures. The colours of pictures are in the style sheet. Texts stand beside
//! them, in HTML, so that they keep their size.

use std::time::Duration;

use indicatif::HumanFloatCount;
use jiff::Timestamp;
use maud::{Markup, html};

use crate::operate::ui::App;
use crate::text;

/// Formats tokens for a table: `1,234`, `12.5`, `0.04`. Rounded down, so that 0.99 tokens do not look like one.
pub(super) fn amount(value: f64) -> String {
    let size = value.abs();
    let scale = match size {
        size if size >= 100.0 => 1.0,
        size if size >= 1.0 || size == 0.0 => 10.0,
        _ => 100.0,
    };
    let rounded = (value * scale + 1e-6).floor() / scale;
    let sign = if rounded < 0.0 { "−" } else { "" };
    if size < 1e15 { format!("{sign}{}", HumanFloatCount(rounded.abs())) } else { format!("{sign}{size:e}") }
}

pub(super) fn per_minute(value: f64) -> String {
    if value > 0.0 && value < 0.1 { "<0.1".to_owned() } else { amount(value) }
}

pub(super) fn clock(micros: i64) -> String {
    let time = Timestamp::from_microsecond(micros).map(|time| time.strftime("%Y-%m-%d %H:%M:%SZ").to_string());
    time.unwrap_or_else(|_| format!("@{}", micros / 1_000_000))
}

/// `in 4m 10s`, `3s ago` or `now`.
pub(super) fn relative(micros: i64, now: i64) -> String {
    let length = Duration::from_micros(micros.abs_diff(now));
    if length < Duration::from_secs(1) {
        return "now".to_owned();
    }
    let length = span(length);
    if micros > now { format!("in {length}") } else { format!("{length} ago") }
}

/// A length of time: `1.5s`, `4m 10s`.
pub(super) fn span(length: Duration) -> String {
    if length < Duration::from_secs(10) {
        // Rounded up, as a wait has to be.
        return format!("{}s", length.as_millis().div_ceil(100) as f64 / 10.0);
    }
    text::age(length)
}

pub(super) fn time(micros: i64, now: i64) -> Markup {
    let exact = clock(micros);
    html! { time datetime=(exact.replace(' ', "T")) title=(exact) { (relative(micros, now)) } }
}

pub(super) fn time_or_dash(micros: Option<i64>, now: i64) -> Markup {
    micros.map_or_else(|| html! { "–" }, |micros| time(micros, now))
}

pub(super) fn key(app: &App, key: &str) -> Markup {
    html! {
        @if key.is_empty() { span class="all" { "all callers" } }
        @else { bdi class="key" { (text::escaped(&app.keys.shown(key))) } }
    }
}

pub(super) fn named(text: &str) -> Markup {
    html! { bdi { (text::escaped(text)) } }
}

pub(super) fn key_link(app: &App, of: &str) -> Markup {
    html! { a href=(key_url(app, of)) { (key(app, of)) } }
}

pub(super) fn key_url(app: &App, key: &str) -> String {
    format!("/key?key={}", encoded(&app.keys.shown(key)))
}

pub(super) fn queue_url(queue: &str) -> String {
    format!("/queue?queue={}", encoded(queue))
}

pub(super) fn job_url(id: i64) -> String {
    format!("/job?id={id}")
}

pub(super) fn encoded(text: &str) -> String {
    let is_kept = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.~".contains(&byte);
    let encode = |byte| if is_kept(byte) { char::from(byte).to_string() } else { format!("%{byte:02X}") };
    text.bytes().map(encode).collect()
}

pub(super) fn capital(text: &str) -> String {
    let mut letters = text.chars();
    letters.next().map_or_else(String::new, |first| first.to_uppercase().chain(letters).collect())
}

pub(super) fn n(value: f64) -> String {
    text::plain((value * 100.0).round() / 100.0)
}

pub(super) fn svg(class: &str, (width, height): (f64, f64), title: &str, shapes: Markup) -> Markup {
    html! {
        svg class=(class) viewBox={ "0 0 " (n(width)) " " (n(height)) } preserveAspectRatio="none" role="img" aria-label=(title) {
            title { (title) }
            (shapes)
        }
    }
}

/// A line, and the area between it and the height `base`.
fn area(points: impl Iterator<Item = (f64, f64)>, width: f64, base: f64) -> Markup {
    let line = points.map(|(x, y)| format!("{} {}", n(x), n(y))).collect::<Vec<_>>().join(" L ");
    html! {
        path class="area" d={ "M 0 " (n(base)) " L " (line) " L " (n(width)) " " (n(base)) " Z" } {}
        path class="line" d={ "M " (line) } {}
    }
}

pub(super) fn sparkline(values: &[f64], title: &str) -> Markup {
    const HEIGHT: f64 = 32.0;
    let most = values.iter().copied().fold(0.0, f64::max);
    let width = values.len().max(2) as f64 - 1.0;
    let y = |value: f64| if most > 0.0 { HEIGHT - 1.0 - value / most * (HEIGHT - 3.0) } else { HEIGHT - 1.0 };
    let points = values.iter().enumerate().map(|(x, value)| (x as f64, y(*value)));
    svg("spark", (width, HEIGHT), title, html! { @if !values.is_empty() { (area(points, width, HEIGHT)) } })
}

pub(super) fn meter(left: f64, title: &str) -> Markup {
    let state = match left {
        left if left < 0.1 => "low",
        left if left < 0.35 => "some",
        _ => "much",
    };
    bar(state, left, title)
}

pub(super) fn gauge(used: f64, title: &str) -> Markup {
    bar(if used > 0.8 { "low" } else { "much" }, used, title)
}

fn bar(state: &str, part: f64, title: &str) -> Markup {
    let shapes = html! {
        rect class="track" width="100" height="8" {}
        rect class="fill" width=(n(part.clamp(0.0, 1.0) * 100.0)) height="8" {}
    };
    svg(&format!("meter {state}"), (100.0, 8.0), title, shapes)
}

pub(super) fn columns(values: &[f64], most: f64, title: &str) -> Markup {
    let width = 10.0;
    let shapes = html! {
        @for (place, value) in values.iter().enumerate() {
            @let height = if most > 0.0 { (value / most).clamp(0.0, 1.0) * 38.0 } else { 0.0 };
            @let x = n(place as f64 * width + 0.6);
            rect class="track" x=(x) y="0" width=(n(width - 1.2)) height="40" {}
            rect class="fill" x=(x) y=(n(40.0 - height)) width=(n(width - 1.2)) height=(n(height)) {}
        }
    };
    svg("columns", (values.len().max(1) as f64 * width, 40.0), title, shapes)
}

/// A balance over time, from 0 (or below, if tokens are owed) to the capacity.
pub(super) fn curve(points: &[(i64, f64)], capacity: f64, title: &str) -> Markup {
    const SIZE: (f64, f64) = (400.0, 120.0);
    let (Some(first), Some(last)) = (points.first(), points.last()) else { return html! {} };
    let least = points.iter().map(|point| point.1).fold(0.0, f64::min);
    let most = points.iter().map(|point| point.1).fold(capacity, f64::max);
    let x = |at: i64| (at - first.0) as f64 / ((last.0 - first.0).max(1)) as f64 * SIZE.0;
    let y = |value: f64| SIZE.1 - 4.0 - (value - least) / (most - least).max(f64::MIN_POSITIVE) * (SIZE.1 - 8.0);
    let shapes = html! {
        path class="capacity" d={ "M 0 " (n(y(capacity))) " H 400" } {}
        @if least < 0.0 { path class="zero" d={ "M 0 " (n(y(0.0))) " H 400" } {} }
        (area(points.iter().map(|(at, value)| (x(*at), y(*value))), SIZE.0, y(0.0)))
    };
    svg("curve", SIZE, title, shapes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn amounts_are_short_and_rounded_down() {
        let texts = [0.0, 0.999, 1.0, 9.99, 12.54, 99.96, 1234.9, -0.25, -3.0, 1e6].map(amount);
        assert_eq!(texts, ["0", "0.99", "1", "9.9", "12.5", "99.9", "1,234", "−0.25", "−3", "1,000,000"]);
        assert_eq!([per_minute(0.0), per_minute(0.05), per_minute(2.0)], ["0", "<0.1", "2"]);
    }

    #[test]
    fn times_are_relative() {
        let second = 1_000_000;
        assert_eq!([relative(0, 0), relative(5 * second, 0), relative(0, 90 * second)], ["now", "in 5s", "1m 30s ago"]);
        assert_eq!([span(Duration::from_millis(1_401)), span(Duration::from_secs(60))], ["1.5s", "1m"]);
        assert_eq!(clock(0), "1970-01-01 00:00:00Z");
    }

    #[test]
    fn queries_are_encoded() {
        assert_eq!(encoded("a&b=c/ü \u{0}"), "a%26b%3Dc%2F%C3%BC%20%00");
    }

    #[test]
    fn pictures_are_well_formed_and_have_names() {
        for picture in [
            sparkline(&[], "none <&>"),
            sparkline(&[0.0, 0.0], "zeros"),
            sparkline(&[1.0, 3.0, 2.0], "some"),
            meter(2.0, "full"),
            meter(-1.0, "empty"),
            columns(&[1.0, 0.0], 0.0, "columns"),
            curve(&[(0, -5.0), (10, 5.0)], 10.0, "a debt"),
            curve(&[(0, 0.0)], 0.0, "a point"),
        ] {
            let text = picture.into_string();
            let parsed = roxmltree::Document::parse(&text).unwrap_or_else(|error| panic!("{error}: {text}"));
            let root = parsed.root_element();
            assert_eq!(root.attribute("role"), Some("img"));
            let title = root.children().find(|child| child.has_tag_name("title")).and_then(|title| title.text());
            assert_eq!(title, root.attribute("aria-label"));
            assert!(!text.contains("NaN") && !text.contains("inf"), "{text}");
        }
    }
}
