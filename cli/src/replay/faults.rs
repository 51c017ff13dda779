use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::error::CliError;
use crate::lines::{BadLine, BadLines};

/// What goes wrong in a pass over a recording, beside its calls.
pub(super) struct Faults(Mutex<State>);

struct State {
    lines: Unreadable,
    /// The error that has ended the pass.
    error: Option<CliError>,
}

/// What is done with lines that cannot be read.
enum Unreadable {
    Count(BadLines),
    Keep(Vec<BadLine>),
    LeaveOut,
}

impl Faults {
    /// Counts lines, and ends the pass if there are too many.
    pub(super) fn counted(lines: BadLines) -> Self {
        Self::new(Unreadable::Count(lines))
    }

    /// Keeps lines until they are taken.
    pub(super) fn kept() -> Self {
        Self::new(Unreadable::Keep(Vec::new()))
    }

    /// Leaves lines out: those of a file that was read before.
    pub(super) fn left_out() -> Self {
        Self::new(Unreadable::LeaveOut)
    }

    fn new(lines: Unreadable) -> Self {
        Self(Mutex::new(State { lines, error: None }))
    }

    /// Adds a line. `read`: the number of lines that were read, with this one.
    pub(super) fn add(&self, line: BadLine, read: u64) -> Result<(), CliError> {
        match &mut self.locked().lines {
            Unreadable::Count(lines) => lines.add(line, read),
            Unreadable::Keep(lines) => {
                lines.push(line);
                Ok(())
            }
            Unreadable::LeaveOut => Ok(()),
        }
    }

    /// Ends the pass.
    pub(super) fn end(&self, error: CliError) {
        self.locked().error = Some(error);
    }

    /// Returns the kept lines, and removes them. Returns the error that has ended the pass, if one has.
    pub(super) fn take(&self) -> Result<Vec<BadLine>, CliError> {
        let mut state = self.locked();
        match (state.error.take(), &mut state.lines) {
            (Some(error), _) => Err(error),
            (None, Unreadable::Keep(lines)) => Ok(std::mem::take(lines)),
            (None, _) => Ok(Vec::new()),
        }
    }

    /// The note on the lines that were counted, after all lines were read. Returns an error if there are too many.
    pub(super) fn note(&self, all: u64) -> Result<Option<String>, CliError> {
        match &self.locked().lines {
            Unreadable::Count(lines) => lines.check(all).map(|()| lines.note(all)),
            Unreadable::Keep(_) | Unreadable::LeaveOut => Ok(None),
        }
    }

    fn locked(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
