//! The user that the server runs as: the current user, or another one if the current user is root.

use std::{
    fs, io,
    os::unix::{
        fs::{MetadataExt, chown},
        process::CommandExt,
    },
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use super::ServerError;

#[derive(Clone, Debug)]
pub(super) struct RunAs {
    /// The id of the current user.
    pub(super) me: u32,
    other: Option<User>,
}

#[derive(Clone, Debug, PartialEq)]
struct User {
    name: String,
    uid: u32,
    gid: u32,
}

impl RunAs {
    pub(super) fn choose() -> Result<Self, ServerError> {
        // The owner of a new file is the one portable way to learn the user id without unsafe code.
        let me = tempfile::tempfile()
            .and_then(|file| file.metadata())
            .map_err(ServerError::io("create a temporary file"))?
            .uid();
        if me != 0 {
            return Ok(Self { me, other: None });
        }
        let users = fs::read_to_string("/etc/passwd").map_err(ServerError::io("read /etc/passwd"))?;
        let user = ["postgres", "_postgres", "nobody"].iter().find_map(|name| find_user(&users, name));
        Ok(Self { me, other: Some(user.ok_or(ServerError::NoUser)?) })
    }

    /// Creates a command that runs as the server's user. It starts in `/`, because that user may not enter the current folder.
    pub(super) fn command(&self, program: impl AsRef<Path>) -> Command {
        let mut command = Command::new(program.as_ref());
        command.current_dir("/").stdin(Stdio::null());
        if let Some(user) = &self.other {
            command.uid(user.uid).gid(user.gid);
        }
        command
    }

    pub(super) fn give(&self, path: &Path) -> io::Result<()> {
        self.other.as_ref().map_or(Ok(()), |user| chown(path, Some(user.uid), Some(user.gid)))
    }

    /// Returns whether the server's user can enter the folder, or its closest existing parent.
    pub(super) fn can_enter(&self, dir: &Path) -> bool {
        let there = dir.ancestors().find(|dir| dir.exists()).unwrap_or(dir);
        self.test(r#"cd "$1""#, there)
    }

    /// Returns a folder for temporary files in which the server's user can create and remove folders.
    pub(super) fn temp_dir(&self) -> PathBuf {
        let first = std::env::temp_dir();
        [first.clone(), "/tmp".into(), "/var/tmp".into()]
            .into_iter()
            .find(|dir| self.test(r#"cd "$1" && test -w ."#, dir))
            .unwrap_or(first)
    }

    pub(super) fn name(&self) -> &str {
        self.other.as_ref().map_or("this user", |user| &user.name)
    }

    fn test(&self, script: &str, dir: &Path) -> bool {
        let mut shell = self.command("/bin/sh");
        shell.args(["-c", script, "sh"]).arg(dir).stdout(Stdio::null()).stderr(Stdio::null());
        shell.status().is_ok_and(|status| status.success())
    }
}

fn find_user(passwd: &str, name: &str) -> Option<User> {
    passwd.lines().find_map(|line| {
        let mut fields = line.split(':');
        if fields.next()? != name {
            return None;
        }
        let uid = fields.nth(1)?.parse().ok().filter(|uid| *uid != 0)?;
        Some(User { name: name.to_owned(), uid, gid: fields.next()?.parse().ok()? })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn root_is_never_selected() {
        let passwd =
            "root:x:0:0:root:/root:/bin/sh\n# c\nnobody:*:-2:-2::/:/bin/false\npostgres:x:101:104::/:/bin/sh\n";
        let user = User { name: "postgres".into(), uid: 101, gid: 104 };
        assert_eq!(find_user(passwd, "postgres"), Some(user));
        assert_eq!(find_user(passwd, "root"), None);
        assert_eq!(find_user(passwd, "nobody"), None);
    }
}
