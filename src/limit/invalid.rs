use std::path::Path;

use crate::limit::LONGEST_NAME;

/// The definition of a limit is not valid: a number is out of range, or an option does not apply.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("invalid limit{}: {reason}", .name.as_ref().map(|name| format!(" \"{name}\"")).unwrap_or_default())]
pub struct InvalidLimit {
    name: Option<String>,
    reason: String,
}

impl InvalidLimit {
    pub(crate) fn new(reason: impl Into<String>) -> Self {
        Self { name: None, reason: reason.into() }
    }

    pub(crate) fn of(mut self, name: &str) -> Self {
        self.name = Some(name.to_owned());
        self
    }
}

impl From<std::convert::Infallible> for InvalidLimit {
    fn from(never: std::convert::Infallible) -> Self {
        match never {}
    }
}

/// A limits file is not valid, or cannot be read; or the stored limits cannot be followed. The message names the limit and the field.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{of}: {reason}")]
pub struct LimitsFileError {
    of: &'static str,
    reason: String,
}

impl LimitsFileError {
    pub(crate) fn new(reason: impl Into<String>) -> Self {
        Self { of: "limits file", reason: reason.into() }
    }

    /// Names the file.
    pub(crate) fn at(self, path: &Path) -> Self {
        Self { reason: format!("{}: {}", path.display(), self.reason.trim_end()), ..self }
    }

    /// Names the stored limits instead of a file.
    pub(crate) fn of_stored(self) -> Self {
        Self { of: "stored limits", ..self }
    }
}

/// Returns the message about a limit's name of this length that is refused.
pub(crate) fn refused_name(bytes: usize) -> String {
    format!("the limit's name {}", refused_text(bytes, LONGEST_NAME, "shorten it"))
}

/// Returns the reason why a text of this length is refused, and the remedy. A text that is neither empty nor too long contains a NUL.
pub(crate) fn refused_text(bytes: usize, max: usize, remedy: &str) -> String {
    if bytes == 0 {
        "is empty; give it at least one character".to_owned()
    } else if bytes > max {
        format!("has {bytes} bytes, and at most {max} are allowed; {remedy}")
    } else {
        "contains a NUL character; remove it".to_owned()
    }
}
