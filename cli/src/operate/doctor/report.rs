//! The report of all findings, as text and as JSON.

use serde_json::json;
use sqlx::Result;

use crate::text::{many, one_line};
use crate::{json, output};
use pg_limiter::Error;

/// By check.
pub(crate) type Findings = Vec<(&'static str, Finding)>;

#[derive(Debug, Default)]
pub(super) struct Report(pub(super) Findings);

impl Report {
    pub(super) fn add(&mut self, check: &'static str, finding: Finding) {
        self.0.push((check, finding));
    }

    /// Adds a note if the database refused the check, and returns `None`. A lost connection ends the run.
    pub(super) fn made<T>(&mut self, check: &'static str, result: Result<T>) -> Result<Option<T>> {
        match result {
            Err(error @ (sqlx::Error::Database(_) | sqlx::Error::ColumnDecode { .. } | sqlx::Error::RowNotFound)) => {
                let finding = Finding::note(format!("not checked: {}", Error::database_message(&error))).advise(
                    "Run doctor as the owner of the tables, or as a role that has pg_monitor and may read the tables.",
                );
                self.add(check, finding);
                Ok(None)
            }
            result => result.map(Some),
        }
    }

    pub(super) fn add_made(&mut self, check: &'static str, result: Result<impl Into<Option<Finding>>>) -> Result<()> {
        let finding = self.made(check, result)?.and_then(Into::into);
        self.0.extend(finding.map(|finding| (check, finding)));
        Ok(())
    }

    pub(super) fn text(&self) -> String {
        let width = self.0.iter().map(|(check, _)| check.len()).max().unwrap_or_default();
        let mut lines = Vec::new();
        for (check, Finding { state, found, advice }) in &self.0 {
            // Only the first two columns are padded.
            let (colour, end) = if output::colours() { (state.colour(), "\u{1b}[0m") } else { ("", "") };
            lines.push(format!("{colour}{:<7}{end}  {check:<width$}  {}", state.as_str(), one_line(found)));
            lines.extend(advice.iter().map(|advice| format!("{:9}{}", "", one_line(advice))));
        }
        let counts = [State::Problem, State::Warning, State::Note].map(|state| {
            let count = self.0.iter().filter(|(_, finding)| finding.state == state).count();
            many(count as u64, state.as_str())
        });
        lines.extend([String::new(), counts.join(", ")]);
        lines.join("\n")
    }

    pub(super) fn json(&self) -> String {
        let object = |(check, Finding { state, found, advice }): &(&str, Finding)| {
            let advice = (!advice.is_empty()).then(|| advice.join("\n"));
            json::line(&json!({"check": check, "state": state.as_str(), "found": found, "advice": advice}))
        };
        let objects: Vec<String> = self.0.iter().map(object).collect();
        format!("[\n  {}\n]", objects.join(",\n  "))
    }
}

/// The state that a check found, from good to bad.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum State {
    Ok,
    /// Worth knowing, or could not be checked.
    Note,
    /// It works, but not as well as it could, or not indefinitely.
    Warning,
    /// It does not work, or it can lose data.
    Problem,
}

impl State {
    pub(crate) const fn as_str(self) -> &'static str {
        ["ok", "note", "warning", "problem"][self as usize]
    }

    const fn colour(self) -> &'static str {
        ["\u{1b}[32m", "\u{1b}[36m", "\u{1b}[33m", "\u{1b}[31m"][self as usize]
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Finding {
    pub(crate) state: State,
    pub(crate) found: String,
    pub(crate) advice: Vec<String>,
}

macro_rules! findings {
    ($($name:ident => $state:ident),+) => {
        $(pub(super) fn $name(found: impl Into<String>) -> Self {
            Self { state: State::$state, found: found.into(), advice: Vec::new() }
        })+
    };
}

impl Finding {
    findings!(ok => Ok, note => Note, warning => Warning, problem => Problem);

    pub(super) fn advise(mut self, advice: impl Into<String>) -> Self {
        self.advice.push(advice.into());
        self
    }

    /// Keeps only what was found, if that is well.
    pub(super) fn ok_if(self, is_well: bool) -> Self {
        if is_well { Self::ok(self.found) } else { self }
    }

    /// Adds another result, if there is one. The worse state of the two applies.
    pub(super) fn and(mut self, other: impl Into<Option<Self>>) -> Self {
        if let Some(other) = other.into() {
            self.state = self.state.max(other.state);
            self.found = format!("{}; {}", self.found, other.found);
            self.advice.extend(other.advice);
        }
        self
    }
}
