//! Processes of the tests' own, which can be killed and stopped.

use std::process::Stdio;

use tokio::process::{Child, Command};

/// Runs one test of this binary in a process, with this value in this variable of its environment.
pub fn process(test: &str, variable: &str, value: &str) -> Child {
    Command::new(std::env::current_exe().expect("this binary"))
        .args([test, "--exact", "--nocapture"])
        .env(variable, value)
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .kill_on_drop(true)
        .spawn()
        .expect("a process")
}
