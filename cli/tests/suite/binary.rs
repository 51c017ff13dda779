//! Runs the tool `pg-limiter` as a process.

use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use tempfile::TempDir;

/// The tool's path: Cargo builds it with these tests.
pub fn tool() -> &'static Path {
    Path::new(env!("CARGO_BIN_EXE_pg-limiter"))
}

pub struct Run {
    pub code: Option<i32>,
    pub stdout: String,
    pub stderr: String,
}

/// Runs the tool with this database, or with none, and with this standard input.
pub fn run(url: Option<&str>, args: &[&str], stdin: &str) -> Run {
    let mut command = Command::new(tool());
    command.args(args).env_remove("DATABASE_URL");
    if let Some(url) = url {
        command.env("DATABASE_URL", url);
    }
    let mut child =
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("start the tool");
    // A tool that stops early does not read all of its input.
    let _ = child.stdin.take().expect("its input").write_all(stdin.as_bytes());
    let output = child.wait_with_output().expect("its output");
    Run {
        code: output.status.code(),
        stdout: String::from_utf8(output.stdout).expect("UTF-8"),
        stderr: String::from_utf8(output.stderr).expect("UTF-8"),
    }
}

impl Run {
    pub fn says(&self, code: i32, stdout: &str) {
        assert_eq!((self.code, self.stdout.trim_end()), (Some(code), stdout), "stderr: {}", self.stderr);
    }

    /// Asserts that the tool printed no output, and one message with all of these words.
    pub fn refuses(&self, code: i32, words: &[&str]) {
        self.says(code, "");
        for word in words {
            assert!(self.stderr.contains(word), "no {word:?} in: {}", self.stderr);
        }
        assert!(self.stderr.lines().count() <= 2, "{}", self.stderr);
    }
}

/// A folder with these files.
pub fn files(files: &[(&str, &str)]) -> (TempDir, impl Fn(&str) -> String + use<>) {
    let dir = tempfile::tempdir().expect("a folder");
    for (name, text) in files {
        fs::write(dir.path().join(name), text).expect("write a file");
    }
    let base: PathBuf = dir.path().to_owned();
    (dir, move |name: &str| base.join(name).display().to_string())
}
