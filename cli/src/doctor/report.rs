//! The report of all findings, as text and as JSON.

use std::process::ExitCode;

use serde_json::json;

use crate::text::{many, one_line};
use crate::{json, output};
use pg_limiter::Error;

#[derive(Debug, Default)]
pub(super) struct Report(Vec<(&'static str, Finding)>);

impl Report {
    pub(super) fn add(&mut self, check: &'static str, finding: Finding) {
        self.0.push((check, finding));
    }

    pub(super) fn extend(&mut self, findings: impl IntoIterator<Item = (&'static str, Finding)>) {
        self.0.extend(findings);
    }

    /// Adds a note if the database refused the check, and returns `None`. A lost connection ends the run.
    pub(super) fn made<T>(
        &mut self,
        check: &'static str,
        result: Result<T, sqlx::Error>,
    ) -> Result<Option<T>, sqlx::Error> {
        match result {
            Ok(made) => Ok(Some(made)),
            Err(error @ (sqlx::Error::Database(_) | sqlx::Error::ColumnDecode { .. } | sqlx::Error::RowNotFound)) => {
                let finding = Finding::note(format!("not checked: {}", Error::database_message(&error))).advise(
                    "Run doctor as the owner of the tables, or as a role that has pg_monitor and may read the tables.",
                );
                self.add(check, finding);
                Ok(None)
            }
            Err(error) => Err(error),
        }
    }

    /// Adds the finding of a check, if there is one.
    pub(super) fn add_made(
        &mut self,
        check: &'static str,
        result: Result<impl Into<Option<Finding>>, sqlx::Error>,
    ) -> Result<(), sqlx::Error> {
        let finding = self.made(check, result)?.and_then(Into::into);
        self.extend(finding.map(|finding| (check, finding)));
        Ok(())
    }

    pub(super) fn into_findings(self) -> Vec<(&'static str, Finding)> {
        self.0
    }

    pub(super) fn exit_code(&self) -> ExitCode {
        let ill = self.0.iter().any(|(_, finding)| finding.state >= State::Warning);
        ExitCode::from(u8::from(ill))
    }

    pub(super) fn text(&self) -> Vec<String> {
        let width = self.0.iter().map(|(check, _)| check.len()).max().unwrap_or_default();
        let mut lines = Vec::new();
        for (check, finding) in &self.0 {
            // Only the first two columns are padded.
            let head = format!("{:<7}  {check:<width$}", finding.state.as_str());
            lines.push(format!("{}  {}", coloured(&head, finding.state), one_line(&finding.found)));
            lines.extend(finding.advice.iter().map(|advice| format!("{:9}{}", "", one_line(advice))));
        }
        let counts = [State::Problem, State::Warning, State::Note].map(|state| {
            let count = self.0.iter().filter(|(_, finding)| finding.state == state).count();
            many(count as u64, state.as_str())
        });
        lines.push(String::new());
        lines.push(counts.join(", "));
        lines
    }

    pub(super) fn json(&self) -> String {
        let object = |(check, finding): &(&'static str, Finding)| {
            let advice = (!finding.advice.is_empty()).then(|| finding.advice.join("\n"));
            let state = finding.state.as_str();
            json::line(&json!({"check": check, "state": state, "found": finding.found, "advice": advice}))
        };
        let objects: Vec<String> = self.0.iter().map(object).collect();
        format!("[\n  {}\n]", objects.join(",\n  "))
    }
}

fn coloured(head: &str, state: State) -> String {
    let colour = match state {
        State::Ok => "32",
        State::Note => "36",
        State::Warning => "33",
        State::Problem => "31",
    };
    if output::colours() { format!("\u{1b}[{colour}m{}\u{1b}[0m{}", &head[..7], &head[7..]) } else { head.to_owned() }
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
        match self {
            Self::Ok => "ok",
            Self::Note => "note",
            Self::Warning => "warning",
            Self::Problem => "problem",
        }
    }
}

/// The result of a check, and what to do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Finding {
    pub(crate) state: State,
    pub(crate) found: String,
    /// Lines of advice.
    pub(crate) advice: Vec<String>,
}

impl Finding {
    pub(crate) fn new(state: State, found: impl Into<String>) -> Self {
        Self { state, found: found.into(), advice: Vec::new() }
    }

    pub(crate) fn ok(found: impl Into<String>) -> Self {
        Self::new(State::Ok, found)
    }

    pub(crate) fn note(found: impl Into<String>) -> Self {
        Self::new(State::Note, found)
    }

    pub(crate) fn warning(found: impl Into<String>) -> Self {
        Self::new(State::Warning, found)
    }

    pub(crate) fn problem(found: impl Into<String>) -> Self {
        Self::new(State::Problem, found)
    }

    /// Adds a line of advice.
    pub(crate) fn advise(mut self, advice: impl Into<String>) -> Self {
        self.advice.push(advice.into());
        self
    }

    /// Adds another result to this one. The worse state of the two applies.
    pub(crate) fn and(mut self, other: Self) -> Self {
        self.state = self.state.max(other.state);
        self.found = format!("{}; {}", self.found, other.found);
        self.advice.extend(other.advice);
        self
    }
}
