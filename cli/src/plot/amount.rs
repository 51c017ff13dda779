//! The axis of tokens, and its marks.

use crate::text::plain;

/// An axis from `least` to `most`, both of which are marked.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct AmountAxis {
    pub(super) least: f64,
    pub(super) most: f64,
    pub(super) marks: Vec<(f64, String)>,
}

impl AmountAxis {
    /// An axis that contains all `amounts` and 0, with about `wanted` marks that are at least `closest` apart.
    pub(super) fn holding(amounts: impl IntoIterator<Item = f64>, wanted: u32, closest: f64) -> Self {
        let (least, most) = amounts
            .into_iter()
            .filter(|amount| amount.is_finite())
            .fold((0.0_f64, 0.0_f64), |(least, most), amount| (least.min(amount), most.max(amount)));
        let most = if least == most { 1.0 } else { most };
        let step = round_step((most - least) / f64::from(wanted)).max(closest);
        let (first, last) = ((least / step + 1e-9).floor(), (most / step - 1e-9).ceil());
        // Bound the number of marks for any input.
        let count = (last - first).clamp(1.0, 100.0) as u32;
        let marks = (0..=count).map(|nth| {
            let amount = (first + f64::from(nth)) * step;
            (amount, short(amount, step))
        });
        let marks: Vec<(f64, String)> = marks.collect();
        Self { least: first * step, most: (first + f64::from(count)) * step, marks }
    }
}

/// Rounds a step up to 1, 2 or 5 times a power of ten.
fn round_step(least: f64) -> f64 {
    let power = 10_f64.powf(least.log10().floor());
    [1.0, 2.0, 5.0]
        .into_iter()
        .map(|digit| digit * power)
        .find(|step| *step >= least * (1.0 - 1e-9))
        .unwrap_or(10.0 * power)
}

/// Formats an amount: `1500`, `20k`, `1.5M`, `1e100`.
fn short(amount: f64, step: f64) -> String {
    let scaled = |unit: f64, name: &str| {
        // Only as many digits as distinguish one step from the next.
        let power = 10_f64.powf((-(step / unit).log10().floor()).clamp(0.0, 9.0));
        plain((amount / unit * power).round() / power) + name
    };
    match amount.abs() {
        size if size > 0.0 && (size >= 1e15 || step < 1e-6) => format!("{amount:.1e}").replace(".0e", "e"),
        size if size >= 1e9 => scaled(1e9, "G"),
        size if size >= 1e6 => scaled(1e6, "M"),
        size if size >= 1e4 => scaled(1e3, "k"),
        0.0 => "0".to_owned(),
        _ => scaled(1.0, ""),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(amounts: &[f64]) -> String {
        let axis = AmountAxis::holding(amounts.iter().copied(), 4, 0.0);
        for amount in amounts {
            assert!((axis.least..=axis.most).contains(amount), "{amount} on {axis:?}");
        }
        axis.marks.into_iter().map(|(_, name)| name).collect::<Vec<_>>().join(" ")
    }

    #[test]
    fn marks_are_round_and_enclose_all_amounts() {
        assert_eq!(names(&[]), "0 0.5 1");
        assert_eq!(names(&[3.0, 17.0]), "0 5 10 15 20");
        assert_eq!(names(&[10.0, -4.0]), "-5 0 5 10");
        assert_eq!(names(&[0.7]), "0 0.2 0.4 0.6 0.8");
        assert_eq!(names(&[40_000.0]), "0 10k 20k 30k 40k");
        assert_eq!(names(&[1_400_000.0]), "0 500k 1M 1.5M");
        assert_eq!(names(&[-7.0]), "-8 -6 -4 -2 0");
        let whole = AmountAxis::holding([2.0], 4, 1.0);
        assert_eq!(whole.marks.iter().map(|(_, name)| name.as_str()).collect::<Vec<_>>(), ["0", "1", "2"]);
    }

    #[test]
    fn amounts_of_every_size_have_marks() {
        for amount in [1e100, 1e-100, -1e100, 2e15, 1e-7, f64::NAN, f64::INFINITY] {
            let axis = AmountAxis::holding([amount], 4, 0.0);
            assert!((2..=12).contains(&axis.marks.len()), "{axis:?}");
            assert!(axis.marks.iter().all(|(mark, name)| mark.is_finite() && name.len() < 10), "{axis:?}");
            assert!(axis.least < axis.most);
        }
    }
}
