//! Processes of the tests' own, which can be killed and stopped.

use std::process::{Command as BlockingCommand, Stdio};

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

/// Sends a signal, such as `INT`, with the shell's own `kill`: not every machine has a program of this name.
pub fn signal(process: u32, name: &str) {
    let sent = BlockingCommand::new("/bin/sh").args(["-c", &format!("kill -{name} {process}")]).status();
    assert!(sent.expect("a shell").success(), "kill -{name} {process}");
}
