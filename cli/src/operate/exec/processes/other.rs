//! The process of the command.

use std::ffi::OsString;
use std::io;
use std::process::ExitStatus;
use std::time::Duration;

use tokio::process::{Child, Command};

use pg_limiter::{Lease, LeaseId};

/// Only the command itself: it has no group here.
pub(crate) struct Processes {
    child: Child,
    status: Option<ExitStatus>,
}

impl Processes {
    pub(crate) fn start(command: &[OsString], lease: LeaseId, _grace: Duration) -> io::Result<Self> {
        let (program, rest) = command.split_first().ok_or(io::ErrorKind::InvalidInput)?;
        let child = Command::new(program).args(rest).env("PG_LIMITER_LEASE", lease.to_string()).spawn()?;
        Ok(Self { child, status: None })
    }

    pub(crate) async fn change(&mut self) {
        match self.child.wait().await {
            Ok(status) => self.status = Some(status),
            Err(_) => std::future::pending().await,
        }
    }

    /// Nothing stops here.
    pub(crate) async fn update(&mut self, _: &Lease, _early: Duration) {}

    pub(crate) const fn status(&self) -> Option<ExitStatus> {
        self.status
    }

    pub(crate) const fn is_over(&self) -> bool {
        self.status.is_some()
    }

    /// The console sends Ctrl-C to the command, too.
    pub(crate) fn forward(&mut self, _signal: i32) {}

    pub(crate) fn terminate(&mut self) {
        self.kill();
    }

    pub(crate) fn terminate_rest(&mut self) {}

    pub(crate) fn kill(&mut self) {
        let _ = self.child.start_kill(); // It fails if the command has ended.
    }

    pub(crate) fn names(&self) -> String {
        self.child.id().map_or_else(String::new, |id| id.to_string())
    }

    pub(crate) fn finish(self) {}
}
