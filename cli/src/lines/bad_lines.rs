//! Lines that cannot be read: how many may be, and why a file has none that can be.

use std::str::FromStr;

use clap::Args;

use crate::error::CliError;
use crate::text::{grouped, percent};

/// So many are shown.
const SHOWN: usize = 5;
/// If so many lines are read and none is readable, the rest is not tried.
const HOPELESS: u64 = 1_000;

/// A line that cannot be read.
#[derive(Clone, Debug)]
pub(crate) struct BadLine {
    /// Its place among the lines that are not blank.
    pub(crate) place: usize,
    /// The number of the line in the file.
    pub(crate) number: usize,
    pub(crate) reason: String,
    /// Whether the whole line has another known format.
    pub(crate) is_of_other_format: bool,
}

/// Counts unreadable lines, and ends the run if there are too many.
pub(crate) struct BadLines {
    name: String,
    args: LineArgs,
    first: Vec<BadLine>,
    count: u64,
}

impl BadLines {
    /// `name`: that of the file, for messages.
    pub(crate) fn new(name: &str, args: &LineArgs) -> Self {
        Self { name: name.to_owned(), args: args.clone(), first: Vec::new(), count: 0 }
    }

    /// Counts a line. `read`: the number of lines that were read, with this one.
    pub(crate) fn add(&mut self, line: BadLine, read: u64) -> Result<(), CliError> {
        if self.args.strict {
            return Err(CliError::usage(self.of(&line)));
        }
        self.count += 1;
        if line.is_of_other_format {
            let others = read.saturating_sub(self.count);
            let advice = if others == 0 {
                String::new()
            } else {
                format!(
                    "\n{} lines before it have the format that was given, and a log must have one format: divide the file",
                    grouped(others)
                )
            };
            return Err(CliError::usage(format!("{}{advice}", self.of(&line))));
        }
        if self.first.len() < SHOWN {
            self.first.push(line);
        }
        if self.count >= HOPELESS && self.count == read && !self.args.max_bad_lines.allows(self.count, read) {
            return self.check(read);
        }
        Ok(())
    }

    /// Whether the file may be used that has so many lines.
    pub(crate) fn check(&self, all: u64) -> Result<(), CliError> {
        let Some(first) = self.first.first() else { return Ok(()) };
        if self.args.max_bad_lines.allows(self.count, all) {
            return Ok(());
        }
        Err(CliError::usage(format!(
            "{}\n{} of {} lines cannot be read ({} %), and --max-bad-lines allows {}{}",
            self.of(first),
            grouped(self.count),
            grouped(all),
            percent(self.count, all),
            self.args.max_bad_lines,
            self.others()
        )))
    }

    /// A note on the lines that were left out, if there are any.
    pub(crate) fn note(&self, all: u64) -> Option<String> {
        let lines: String =
            self.first.iter().map(|line| format!("\n  line {}: {}", line.number, line.reason)).collect();
        let more = self.count.saturating_sub(self.first.len() as u64);
        let more = if more > 0 { format!("\n  and {} more", grouped(more)) } else { String::new() };
        let (bad, all) = (grouped(self.count), grouped(all));
        let name = &self.name;
        (self.count > 0).then(|| format!("{name}: {bad} of {all} lines cannot be read and are left out:{lines}{more}"))
    }

    fn of(&self, line: &BadLine) -> String {
        format!("{}, line {}: {}", self.name, line.number, line.reason)
    }

    fn others(&self) -> String {
        let numbers: Vec<String> = self.first.iter().skip(1).map(|line| line.number.to_string()).collect();
        if numbers.is_empty() { String::new() } else { format!("; others are the lines {}", numbers.join(", ")) }
    }
}

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

/// Why the beginning of a text is no record on a line of its own: an event or, otherwise, a request of an access log.
pub(crate) fn of_record(head: &str, is_event: bool) -> Option<String> {
    let record = if is_event { "an event" } else { "a request" };
    let text = head.trim_start();
    let first = text.lines().next().unwrap_or_default().trim_end();
    if text.strip_prefix('[').is_some_and(|rest| rest.trim_start().starts_with(['{', ']'])) {
        return Some(format!(
            "the file is one JSON array, and {record} is one line each: convert it with jq -c '.[]' FILE"
        ));
    }
    if first == "{" {
        return Some(format!(
            "its JSON objects have several lines, and {record} is one line each: convert it with jq -c . FILE"
        ));
    }
    let is_name = |name: &str| !name.is_empty() && name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_');
    let item = first.strip_prefix("- ").unwrap_or(first);
    let is_pair = item
        .split_once(':')
        .is_some_and(|(name, value)| is_name(name.trim_matches('"')) && (value.is_empty() || value.starts_with(' ')));
    (is_event && (first == "---" || first.starts_with("%YAML") || is_pair)).then(|| {
        format!(
            "the file is YAML, and {record} is one JSON object on a line: convert it with yq -o=json -I=0 '.[]' FILE"
        )
    })
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

    #[test]
    fn other_forms_of_records_are_named() {
        for (head, words) in [
            ("[{\"at\": 1}]", "JSON array"),
            ("\n[\n  {\n", "JSON array"),
            ("[]", "JSON array"),
            ("{\n  \"at\": 1\n}", "several lines"),
            ("---\nat: 1\n", "YAML"),
            ("- at: 1\n  limit: a\n", "YAML"),
            ("at: 1\n", "YAML"),
            ("events:\n  - at: 1\n", "YAML"),
        ] {
            assert!(of_record(head, true).is_some_and(|cause| cause.contains(words)), "{head:?}");
        }
        for head in
            ["", "{\"at\": 1}\n", "::1 - - [", "example.com:80 ::1 - -", "[17/May/2015:10:05:03 +0000] ::1", "hello"]
        {
            assert_eq!(of_record(head, true), None, "{head:?}");
        }
    }
}
