/// How it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum State {
    Ok,
    /// Worth to know, or not to be found out.
    Note,
    /// It works, less well than it could, or not for ever.
    Warning,
    /// It does not work, or loses data.
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

/// What a check has found, and what to do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Finding {
    pub(super) state: State,
    pub(super) found: String,
    /// A line each.
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

    /// A line of what to do.
    pub(super) fn advise(mut self, advice: impl Into<String>) -> Self {
        self.advice.push(advice.into());
        self
    }

    /// Something besides, which is as bad as this or worse.
    pub(super) fn and(mut self, other: Self) -> Self {
        self.state = self.state.max(other.state);
        self.found = format!("{}; {}", self.found, other.found);
        self.advice.extend(other.advice);
        self
    }
}
