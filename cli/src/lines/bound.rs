use std::str::FromStr;

use clap::Args;

/// How lines are read. The defaults are those of the command line.
#[derive(Args, Clone, Debug)]
#[group(skip)]
pub(crate) struct LineArgs {
    /// Lines that may be unreadable: a share of all lines, such as 1%, or a number of lines. The first five are shown
    #[arg(long, help_heading = HEADING, value_name = "SHARE", default_value = "1%")]
    pub(crate) max_bad_lines: Bound,
    /// Stop at the first line that cannot be read
    #[arg(long, help_heading = HEADING, conflicts_with = "max_bad_lines")]
    pub(crate) strict: bool,
    /// Number of lines within which lines are sorted by time; more need more memory
    #[arg(long, help_heading = HEADING, value_name = "LINES", default_value = "250000")]
    pub(crate) sort_window: usize,
}

const HEADING: &str = "Lines";

impl Default for LineArgs {
    fn default() -> Self {
        Self { max_bad_lines: Bound::Percent(1.0), strict: false, sort_window: 250_000 }
    }
}

/// The most lines that may be unreadable.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Bound {
    /// A share of all lines.
    Percent(f64),
    Lines(u64),
}

impl Bound {
    pub(super) fn allows(self, bad: u64, all: u64) -> bool {
        match self {
            Self::Percent(percent) => bad as f64 * 100.0 <= percent * all as f64,
            Self::Lines(most) => bad <= most,
        }
    }
}

impl FromStr for Bound {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let percent = text.strip_suffix('%').map(|number| number.trim().parse());
        match (percent, text.parse()) {
            (Some(Ok(percent)), _) if (0.0..=100.0).contains(&percent) => Ok(Self::Percent(percent)),
            (None, Ok(lines)) => Ok(Self::Lines(lines)),
            _ => Err("use a share from 0% to 100%, such as 0.5%, or a whole number of lines"),
        }
    }
}

impl std::fmt::Display for Bound {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Percent(percent) => write!(f, "{percent}%"),
            Self::Lines(lines) => write!(f, "{lines}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bound_is_a_share_or_a_number() {
        for (text, bound) in [("1%", Bound::Percent(1.0)), ("0.5 %", Bound::Percent(0.5)), ("7", Bound::Lines(7))] {
            assert_eq!(text.parse(), Ok(bound), "{text}");
        }
        for text in ["", "%", "-1", "0.5", "101%", "NaN%", "1 line"] {
            assert!(text.parse::<Bound>().is_err(), "{text}");
        }
        let one = Bound::Percent(1.0);
        assert!(one.allows(1, 100) && !one.allows(1, 99) && one.allows(0, 0) && !Bound::Lines(1).allows(2, 1000));
    }
}
