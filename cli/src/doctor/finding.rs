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
