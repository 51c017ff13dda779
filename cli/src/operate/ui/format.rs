//! Texts for numbers, times and keys.

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

/// A time, relative to now; the exact time is its title.
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
    let encode = |byte: u8| match byte.is_ascii_alphanumeric() || b"-_.~".contains(&byte) {
        true => char::from(byte).to_string(),
        false => format!("%{byte:02X}"),
    };
    text.bytes().map(encode).collect()
}

pub(super) fn capital(text: &str) -> String {
    let mut letters = text.chars();
    letters.next().map_or_else(String::new, |first| first.to_uppercase().chain(letters).collect())
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
}
