//! Counts the lines of a file that cannot be read, and shows the first ones, up to a bound.

use std::collections::HashSet;

use clap::Args;

use crate::text::{grouped, one_line, percent_of};
use crate::{CliError, Result};

const SHOWN: usize = 5;
/// If so many lines are read and none is readable, the rest is not tried, unless the user gave a bound.
const HOPELESS: u64 = 1_000;

/// A line that cannot be read, and why.
#[derive(Clone, Debug, Default, PartialEq, Eq, thiserror::Error)]
#[error("{reason}{}", hint.as_ref().map(|hint| format!("; {hint}")).unwrap_or_default())]
pub struct UnreadableLine {
    /// The reason.
    pub reason: String,
    /// Advice, such as the option that reads the line.
    pub hint: Option<String>,
    /// Whether the line has another known format, and is no line of this format that was cut.
    pub is_other_format: bool,
    /// Whether the line does not have the fields of the format, which may be the wrong one.
    pub misses_format: bool,
    /// Its place among the lines that are not blank.
    pub(crate) place: usize,
    /// Its number in the file.
    pub(crate) number: usize,
}

impl From<String> for UnreadableLine {
    fn from(reason: String) -> Self {
        Self { reason, ..Self::default() }
    }
}

/// Counts unreadable lines, and ends the run if there are too many.
pub(crate) struct BadLines<'a> {
    name: &'a str,
    args: &'a LineArgs,
    /// Advice for lines that have no hint.
    advice: Option<&'a str>,
    first: Vec<UnreadableLine>,
    count: u64,
    of_other_formats: u64,
}

impl<'a> BadLines<'a> {
    pub(crate) const fn new(name: &'a str, args: &'a LineArgs, advice: Option<&'a str>) -> Self {
        Self { name, args, advice, first: Vec::new(), count: 0, of_other_formats: 0 }
    }

    /// Counts a line. `read`: the number of lines that were read, with this one.
    pub(crate) fn add(&mut self, mut line: UnreadableLine, read: u64) -> Result<()> {
        line.reason = one_line(&line.reason); // It quotes the line, which may have line breaks as JSON has them.
        line.hint = line.hint.as_deref().map(one_line);
        CliError::refuse_if(self.args.strict, self.of(&line))?;
        self.count += 1;
        self.of_other_formats += u64::from(line.is_other_format);
        if self.first.len() < SHOWN {
            self.first.push(line);
        }
        if self.count < HOPELESS || self.count < read || self.args.max_bad_lines.is_some() {
            return Ok(());
        }
        let advice = "the lines after these were not read: to read all of them, give --max-bad-lines";
        self.check(read).map_err(|error| CliError::usage(format!("{error}; {advice}")))
    }

    /// Whether the file may be used that has so many lines.
    pub(crate) fn check(&self, all: u64) -> Result<()> {
        let [first, others @ ..] = self.first.as_slice() else { return Ok(()) };
        let allowed = self.args.max_bad_lines.unwrap_or(Bound::Percent(1.0));
        if allowed.allows(self.count, all) {
            return Ok(());
        }
        let allowed = match allowed {
            Bound::Percent(percent) => format!("{percent}%"),
            Bound::Lines(lines) => lines.to_string(),
        };
        let first = self.of(first);
        let (bad, lines, share) = (grouped(self.count), grouped(all), percent_of(self.count as f64, all as f64));
        let mut reason =
            format!("{first}\n{bad} of {lines} lines cannot be read ({share} %), and --max-bad-lines allows {allowed}");
        if !others.is_empty() {
            let numbers: Vec<String> = others.iter().map(|line| line.number.to_string()).collect();
            let others = if numbers.len() == 1 { "another is line" } else { "others are the lines" };
            reason.push_str(&format!("; {others} {}", numbers.join(", ")));
        }
        if self.of_other_formats > 0 && self.count < all {
            reason.push_str(
                "; the log has lines of more than one format: divide the file, or give a --log-format that reads all of them",
            );
        }
        Err(CliError::usage(reason))
    }

    pub(crate) fn note(&self, all: u64) -> Option<String> {
        let (bad, all) = (grouped(self.count), grouped(all));
        let mut note = format!("{}: {bad} of {all} lines cannot be read and are left out:", self.name);
        let mut hints = HashSet::new();
        for line in &self.first {
            let why = if hints.insert(&line.hint) { line.to_string() } else { line.reason.clone() };
            note.push_str(&format!("\n  line {}: {why}", line.number));
        }
        let more = self.count.saturating_sub(self.first.len() as u64);
        if more > 0 {
            note.push_str(&format!("\n  and {} more", grouped(more)));
        }
        (self.count > 0).then_some(note)
    }

    fn of(&self, line: &UnreadableLine) -> String {
        let lacks_advice = line.hint.is_none() && line.misses_format;
        let advice = self.advice.filter(|_| lacks_advice).map(|advice| format!("; {advice}")).unwrap_or_default();
        format!("{}, line {}: {line}{advice}", self.name, line.number)
    }
}

#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "Lines")]
#[group(skip)]
pub(crate) struct LineArgs {
    /// Lines that may be unreadable: a share of all lines, such as 1%, or a number of lines. The first five are shown. Without this
    /// option, reading stops if none of the first 1,000 lines is readable [default: 1%]
    #[arg(long, value_name = "SHARE", value_parser = Bound::parse)]
    pub(crate) max_bad_lines: Option<Bound>,
    /// Stop at the first line that cannot be read
    #[arg(long, conflicts_with = "max_bad_lines")]
    pub(crate) strict: bool,
    /// Number of lines within which lines are sorted by time; more need more memory
    #[arg(long, value_name = "LINES", default_value = "250000")]
    pub(crate) sort_window: usize,
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Bound {
    Percent(f64),
    Lines(u64),
}

impl Bound {
    fn parse(text: &str) -> Result<Self, &'static str> {
        let percent = text.strip_suffix('%').map(|number| number.trim().parse());
        match (percent, text.parse()) {
            (Some(Ok(percent)), _) if (0.0..=100.0).contains(&percent) => Ok(Self::Percent(percent)),
            (None, Ok(lines)) => Ok(Self::Lines(lines)),
            _ => Err("use a share from 0% to 100%, such as 0.5%, or a whole number of lines"),
        }
    }

    fn allows(self, bad: u64, all: u64) -> bool {
        match self {
            Self::Percent(percent) => bad as f64 * 100.0 <= percent * all as f64,
            Self::Lines(most) => bad <= most,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bound_is_a_share_or_a_number() {
        for (text, bound) in [("1%", Bound::Percent(1.0)), ("0.5 %", Bound::Percent(0.5)), ("7", Bound::Lines(7))] {
            assert_eq!(Bound::parse(text), Ok(bound), "{text}");
        }
        for text in ["", "%", "-1", "0.5", "101%", "NaN%", "1 line"] {
            assert!(Bound::parse(text).is_err(), "{text}");
        }
        let one = Bound::Percent(1.0);
        assert!(one.allows(1, 100) && !one.allows(1, 99) && one.allows(0, 0) && !Bound::Lines(1).allows(2, 1000));
    }
}
