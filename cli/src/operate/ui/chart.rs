//! Small SVG pictures. Their colours are in the style sheet. Texts stand beside them, in HTML, so that they keep their size.

use maud::{Markup, html};

use crate::text::plain;

pub(super) fn n(value: f64) -> String {
    plain((value * 100.0).round() / 100.0)
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
