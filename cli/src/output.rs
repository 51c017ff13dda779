//! Writes to standard output without `println!`, which panics when the reader has closed it.

use std::fmt::Display;
use std::io::{self, IsTerminal, Write};

use crate::error::CliError;
use crate::progress::aside;
use crate::text::message;

/// Writes a line.
pub(super) fn line(text: impl Display) -> Result<(), CliError> {
    let write = |mut out: io::StdoutLock<'_>| writeln!(out, "{text}").and_then(|()| out.flush());
    aside(|| write(io::stdout().lock())).map_err(failure)
}

/// Writes lines through a buffer.
pub(super) fn lines(texts: impl IntoIterator<Item = impl Display>) -> Result<(), CliError> {
    let write = || {
        let mut out = io::BufWriter::new(io::stdout().lock());
        texts.into_iter().try_for_each(|text| writeln!(out, "{text}"))?;
        out.flush()
    };
    aside(write).map_err(failure)
}

/// Writes a message for the user to standard error. What it quotes cannot control the terminal.
pub(super) fn note(text: impl Display) {
    // A failure here cannot be reported anywhere.
    let _ = aside(|| writeln!(io::stderr().lock(), "pg-limiter: {}", message(&text.to_string())));
}

/// Whether to colour standard output. `NO_COLOR` turns it off: see no-color.org.
pub(super) fn colours() -> bool {
    io::stdout().is_terminal() && std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty())
}

/// Turns a failure to write to standard output into an error. A closed pipe is [`CliError::OutputClosed`].
pub(super) fn failure(error: io::Error) -> CliError {
    if error.kind() == io::ErrorKind::BrokenPipe {
        CliError::OutputClosed
    } else {
        CliError::failed(format!("cannot write the output: {error}"))
    }
}
