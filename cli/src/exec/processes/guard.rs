use std::io::{self, Write};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use rustix::process::Pid;

/// A process that ends the command if this one is killed with SIGKILL, which it cannot handle. Without the guard, the command
/// would go on after the end of the lease.
pub(super) struct Guard {
    shell: Child,
    pub(super) has_ended: bool,
}

impl Guard {
    pub(super) fn start() -> io::Result<Self> {
        let mut shell = Command::new("/bin/sh");
        shell.args(["-c", include_str!("guard.sh")]).current_dir("/").process_group(0);
        shell.env_clear().env("PATH", std::env::var_os("PATH").unwrap_or_else(|| "/usr/bin:/bin".into()));
        let shell = shell.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::null()).spawn()?;
        Ok(Self { shell, has_ended: false })
    }

    /// Watches over this group. Its processes get SIGKILL after the grace.
    pub(super) fn watch(&mut self, group: Pid, grace: Duration) -> io::Result<()> {
        let Some(input) = &mut self.shell.stdin else { return Ok(()) };
        writeln!(input, "{group} {}", grace.as_millis() / 100)
    }

    pub(super) fn is(&self, id: Pid) -> bool {
        i64::from(self.shell.id()) == i64::from(id.as_raw_nonzero().get())
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        if !self.has_ended {
            let _ = self.shell.kill(); // It fails if the guard has ended.
            let _ = self.shell.wait();
        }
    }
}
