//! The folder for downloaded programs.

use std::{
    env, fs,
    os::unix::fs::{MetadataExt, PermissionsExt},
    path::{Path, PathBuf},
};

use super::{run_as::RunAs, versions::newest_first};

pub(super) const PREFIX: &str = "postgresql-";

/// Returns the folders of programs that were downloaded before, newest version first.
pub(super) fn fetched(run_as: &RunAs) -> Vec<PathBuf> {
    let caches = candidates(run_as).into_iter().filter(|dir| trusted(dir, run_as).is_ok());
    caches.flat_map(|dir| newest_first(dir, PREFIX, "bin")).collect()
}

/// Returns the folder for downloaded programs, and creates it if necessary.
pub(super) fn make(run_as: &RunAs) -> Result<PathBuf, String> {
    let mut reasons = Vec::new();
    for dir in candidates(run_as) {
        match make_one(&dir, run_as) {
            Ok(()) => return Ok(dir),
            Err(reason) => reasons.push(format!("{} {reason}", dir.display())),
        }
    }
    Err(format!("no cache folder can be used: {}", reasons.join("; ")))
}

/// Only the folder that the user names, or else several: the server's user cannot run programs below /root.
fn candidates(run_as: &RunAs) -> Vec<PathBuf> {
    let var = |name| env::var_os(name).map(PathBuf::from).filter(|dir| dir.is_absolute());
    if let Some(named) = named() {
        return vec![named];
    }
    let mut dirs = Vec::new();
    dirs.extend(var("XDG_CACHE_HOME").map(|dir| dir.join("pg-limiter")));
    dirs.extend(var("HOME").map(|dir| dir.join(".cache/pg-limiter")));
    dirs.push("/var/cache/pg-limiter".into());
    dirs.push(run_as.temp_dir().join(format!("pg-limiter-cache-{}", run_as.me)));
    dirs
}

fn named() -> Option<PathBuf> {
    let dir = env::var_os("PG_LIMITER_CACHE").filter(|dir| !dir.is_empty())?;
    std::path::absolute(dir).ok()
}

fn make_one(dir: &Path, run_as: &RunAs) -> Result<(), String> {
    if !run_as.can_enter(dir) {
        return Err(format!("cannot be entered by {}", run_as.name()));
    }
    if !dir.exists() {
        let open = fs::Permissions::from_mode(0o755);
        let made = fs::create_dir_all(dir).and_then(|()| fs::set_permissions(dir, open));
        made.map_err(|error| format!("cannot be created: {error}"))?;
    }
    trusted(dir, run_as)?;
    match tempfile::tempdir_in(dir) {
        Ok(_) => Ok(()),
        Err(error) => Err(format!("cannot be written to: {error}")),
    }
}

/// Programs in this folder are executed, so no other user may write to it. A folder that the user names is not checked.
fn trusted(dir: &Path, run_as: &RunAs) -> Result<(), String> {
    if named().is_some() {
        return Ok(());
    }
    let found = fs::symlink_metadata(dir).map_err(|error| format!("cannot be read: {error}"))?;
    let owner = found.uid();
    if !found.is_dir() || (owner != run_as.me && owner != 0) || found.mode() & 0o022 != 0 {
        return Err("is not a folder owned by this user or root that only its owner can write to".to_owned());
    }
    Ok(())
}
