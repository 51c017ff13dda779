use crate::error::CliError;
use crate::lines::LineArgs;
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
