//! Reads files, and standard input for `-`.

use std::io::Read;
use std::path::Path;

use crate::text::{escaped, one_line};
use crate::{CliError, Result, output};
use pg_limiter::Limits;

pub(super) fn is_stdin(path: &Path) -> bool {
    path.as_os_str() == "-"
}

pub(super) fn name(path: &Path) -> String {
    if is_stdin(path) { "standard input".to_owned() } else { one_line(&path.display().to_string()) }
}

pub(super) fn read(path: &Path) -> Result<Vec<u8>> {
    let result = if is_stdin(path) {
        let mut bytes = Vec::new();
        std::io::stdin().lock().read_to_end(&mut bytes).map(|_| bytes)
    } else {
        std::fs::read(path)
    };
    result.map_err(|error| CliError::usage(format!("cannot read {}: {error}", name(path))))
}

/// Reads a limits file. It is JSON if its name ends in `.json`, or if standard input begins with `{`; otherwise TOML.
pub(super) fn read_limits(path: &Path) -> Result<Limits> {
    let name = name(path);
    let bytes = read(path)?;
    let invalid = |reason: &str| CliError::usage(format!("{name}: {reason}"));
    if let Some(cause) = of_encoding(&bytes) {
        return Err(invalid(&cause));
    }
    let text = std::str::from_utf8(&bytes).map_err(|_| invalid("the file is not UTF-8"))?;
    let text = text.strip_prefix('\u{feff}').unwrap_or(text);
    let json = match path.extension() {
        Some(extension) => extension.eq_ignore_ascii_case("json"),
        None => is_stdin(path) && text.trim_start().starts_with('{'),
    };
    let limits = if json { Limits::from_json(text) } else { Limits::from_toml(text) };
    let limits = limits.map_err(|error| {
        // A message on TOML has several lines; texts of JSON can have line breaks.
        let reason = if json { one_line(&error.to_string()) } else { error.to_string() };
        invalid(reason.strip_prefix("limits file: ").unwrap_or(&reason).trim_end())
    })?;
    warn(&limits);
    Ok(limits)
}

/// Prints warnings for options of limits that are valid but rarely useful.
pub(super) fn warn(limits: &Limits) {
    for (name, limit) in limits.iter() {
        for warning in limit.warnings() {
            output::note(format_args!("warning: limit \"{}\": {warning}", escaped(name)));
        }
    }
}

/// Why this is no text in UTF-8 with line breaks.
pub(crate) fn of_encoding(head: &[u8]) -> Option<String> {
    let encoded = |name: &str, order: &str| {
        format!("the file is in {name}: convert it with iconv -f {name}{order} -t UTF-8 FILE")
    };
    let lines = head.trim_ascii_end();
    let cause = match head {
        [0xff, 0xfe, 0, 0, ..] | [0, 0, 0xfe, 0xff, ..] => encoded("UTF-32", ""),
        _ if head.get(257..262) == Some(b"ustar") => {
            "the file is a tar archive: extract a file of it with tar -xOf - NAME < FILE".to_owned()
        }
        [0xff, 0xfe, ..] | [0xfe, 0xff, ..] => encoded("UTF-16", ""),
        [first, 0, second, 0, ..] if *first != 0 && *second != 0 => encoded("UTF-16", "LE"),
        [0, first, 0, second, ..] if *first != 0 && *second != 0 => encoded("UTF-16", "BE"),
        _ if lines.contains(&b'\r') && !lines.contains(&b'\n') => {
            "its lines end in CR alone: convert it with tr '\\r' '\\n' < FILE".to_owned()
        }
        _ => return None,
    };
    Some(format!("{cause}, and read the result"))
}
