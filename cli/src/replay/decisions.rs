use std::collections::BTreeMap;

use crate::error::CliError;
use crate::json;
use crate::lines::BadLine;
use crate::output;
use pg_limiter::{Decision, InvalidCall, Op};

/// Prints the decision on each line as JSON, in the order of the lines.
#[derive(Default)]
pub(super) struct Decisions {
    /// The next line to print.
    next: usize,
    /// Decisions on lines after that one.
    waiting: BTreeMap<usize, String>,
}

impl Decisions {
    /// Adds the decision on a line.
    pub(super) fn add(&mut self, place: usize, op: Op, decision: &Result<Decision, InvalidCall>) {
        let text = match decision {
            Ok(decision) if matches!(op, Op::Release | Op::Renew) => json::was_held(decision),
            Ok(decision) => json::decision(decision),
            Err(error) => json::impossible(error),
        };
        self.waiting.insert(place, text);
    }

    /// Adds a line that could not be read.
    pub(super) fn add_bad(&mut self, line: &BadLine) {
        let message = format!("line {}: {}", line.number, line.reason);
        self.waiting.insert(line.place, json::line(&serde_json::json!({"error": "invalid_line", "message": message})));
    }

    /// Prints the lines that follow the last one.
    pub(super) fn print(&mut self) -> Result<(), CliError> {
        let mut lines = Vec::new();
        while let Some(text) = self.waiting.remove(&self.next) {
            lines.push(text);
            self.next += 1;
        }
        if lines.is_empty() { Ok(()) } else { output::lines(lines) }
    }
}
