/// The state that a check found, from good to bad.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum State {
    Ok,
    /// Worth knowing, or could not be checked.
    Note,
    /// It works, but not as well as it could, or not indefinitely.
    Warning,
    /// It does not work, or it can lose data.
    Problem,
}

impl State {
    pub(super) const fn as_str(self) -> &'static str {
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
pub(super) struct Finding {
    pub(super) state: State,
    pub(super) found: String,
    /// Lines of advice.
    pub(super) advice: Vec<String>,
}

impl Finding {
    pub(super) fn new(state: State, found: impl Into<String>) -> Self {
        Self { state, found: found.into(), advice: Vec::new() }
    }

    pub(super) fn ok(found: impl Into<String>) -> Self {
        Self::new(State::Ok, found)
    }

    pub(super) fn note(found: impl Into<String>) -> Self {
        Self::new(State::Note, found)
    }

    pub(super) fn warning(found: impl Into<String>) -> Self {
        Self::new(State::Warning, found)
    }

    pub(super) fn problem(found: impl Into<String>) -> Self {
        Self::new(State::Problem, found)
    }

    /// Adds a line of advice.
    pub(super) fn advise(mut self, advice: impl Into<String>) -> Self {
        self.advice.push(advice.into());
        self
    }

    /// Adds another result to this one. The worse state of the two applies.
    pub(super) fn and(mut self, other: Self) -> Self {
        self.state = self.state.max(other.state);
        self.found = format!("{}; {}", self.found, other.found);
        self.advice.extend(other.advice);
        self
    }
}
