//! The versions of server programs in a folder.

use std::cmp::Reverse;
use std::fs;
use std::path::{Path, PathBuf};

use super::run_as::RunAs;

pub(super) fn complete(dir: &Path) -> bool {
    ["initdb", "postgres"].iter().all(|program| dir.join(program).is_file())
}

/// Returns the version of the programs in a folder. Running them also checks that the server's user can do so.
pub(super) fn version(dir: &Path, run_as: &RunAs) -> Result<String, String> {
    if !complete(dir) {
        return Err("it has no `initdb` and `postgres`".to_owned());
    }
    version_of("initdb", dir, run_as)?;
    version_of("postgres", dir, run_as)
}

fn version_of(program: &str, dir: &Path, run_as: &RunAs) -> Result<String, String> {
    let output = run_as.command(dir.join(program)).arg("--version").output();
    let output = output.map_err(|error| format!("{} cannot run its `{program}`: {error}", run_as.name()))?;
    // postgres (PostgreSQL) 15.18 (Debian 15.18-0+deb12u1)
    let text = String::from_utf8_lossy(&output.stdout);
    match text.split_whitespace().nth(2) {
        Some(version) if output.status.success() => Ok(version.to_owned()),
        _ => {
            let (status, errors) = (output.status, String::from_utf8_lossy(&output.stderr));
            Err(format!("its `{program} --version` failed ({status}): {}", errors.trim()))
        }
    }
}

/// Returns the folders `parent/<prefix><version><anything>/below`, newest version first.
pub(super) fn newest_first(parent: impl AsRef<Path>, prefix: &str, below: &str) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in fs::read_dir(parent).into_iter().flatten().flatten() {
        let name = entry.file_name();
        let version = name.to_str().and_then(|name| name.strip_prefix(prefix)).and_then(numbers);
        if let Some(version) = version {
            found.push((Reverse(version), entry.path().join(below)));
        }
    }
    found.sort();
    found.into_iter().map(|(_, dir)| dir).collect()
}

fn numbers(version: &str) -> Option<Vec<u32>> {
    let numbers = version.split(|c: char| !c.is_ascii_digit() && c != '.').next()?;
    numbers.split('.').map(|number| number.parse().ok()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_sorted_newest_first() {
        let dir = tempfile::tempdir().unwrap();
        for name in ["x-9.6", "x-18.4-linux", "x-latest", "x-18.10-linux", "y-20", "x-13"] {
            fs::create_dir(dir.path().join(name)).unwrap();
        }
        let found = newest_first(dir.path(), "x-", "bin");
        let names = ["x-18.10-linux/bin", "x-18.4-linux/bin", "x-13/bin", "x-9.6/bin"];
        assert_eq!(found, names.map(|name| dir.path().join(name)));
    }
}
