//! Standard output, without `println!`: that panics when nobody reads any more.

use std::fmt::Display;
use std::io::{self, IsTerminal, Write};

use crate::error::CliError;

/// Writes a line.
pub(super) fn line(text: impl Display) -> Result<(), CliError> {
    let mut out = io::stdout().lock();
    writeln!(out, "{text}").and_then(|()| out.flush()).map_err(failure)
}

/// Writes many lines, through a buffer.
pub(super) fn lines(texts: impl IntoIterator<Item = impl Display>) -> Result<(), CliError> {
    let mut out = io::BufWriter::new(io::stdout().lock());
    for text in texts {
        writeln!(out, "{text}").map_err(failure)?;
    }
    out.flush().map_err(failure)
}

/// A line for the user, beside the output.
pub(super) fn note(text: impl Display) {
    // If even that cannot be written, there is nobody to tell.
    let _ = writeln!(io::stderr().lock(), "pg-limiter: {text}");
}

/// Whether to colour standard output: see no-color.org.
pub(super) fn colours() -> bool {
    io::stdout().is_terminal() && std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty())
}

/// What it means that standard output could not be written.
pub(super) fn failure(error: io::Error) -> CliError {
    if error.kind() == io::ErrorKind::BrokenPipe {
        CliError::OutputClosed
    } else {
        CliError::failed(format!("cannot write the output: {error}"))
    }
}
