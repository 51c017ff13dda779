//! The terminal. While the command runs, the command's group is in its foreground: it reads, and gets Ctrl-C and Ctrl-Z.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileTypeExt;

use nix::sys::signal::{SigSet, SigmaskHow, Signal};
use rustix::process::{Pid, getpgrp, test_kill_process_group};
use rustix::termios::{tcgetpgrp, tcsetpgrp};

pub(super) struct Terminal {
    device: File,
    /// The tool's own group.
    home: Pid,
    /// Whether a standard stream is a pipe. Then the rest of the pipeline has the terminal until the command uses it.
    pub(super) is_in_pipeline: bool,
}

impl Terminal {
    pub(super) fn open() -> Option<Self> {
        let device = File::options().read(true).write(true).open("/dev/tty").ok()?;
        let is_in_pipeline = is_pipe(io::stdin()) || is_pipe(io::stdout()) || is_pipe(io::stderr());
        Some(Self { device, home: getpgrp(), is_in_pipeline })
    }

    pub(super) fn is_home(&self) -> bool {
        self.is_lent_to(self.home)
    }

    pub(super) fn is_lent_to(&self, group: Pid) -> bool {
        tcgetpgrp(&self.device) == Ok(group)
    }

    /// Lends the terminal to a command that has not used it yet.
    pub(super) fn offer(&self, group: Pid) {
        if !self.is_in_pipeline {
            self.lend(group);
        }
    }

    /// Lends the terminal, unless others have it: the tool runs in the background then.
    pub(super) fn lend(&self, group: Pid) {
        if self.is_home() {
            self.set(group);
        }
    }

    /// Takes the terminal back from the group, or from a group that has ended. Returns whether it did.
    pub(super) fn take_back(&self, group: Pid) -> bool {
        let Ok(present) = tcgetpgrp(&self.device) else { return false };
        let is_lent = present == group || test_kill_process_group(present) == Err(rustix::io::Errno::SRCH);
        is_lent && self.set(self.home)
    }

    fn set(&self, group: Pid) -> bool {
        // The system stops a process in the background that does this, unless it blocks the signal.
        let Ok(mask) = SigSet::from(Signal::SIGTTOU).thread_swap_mask(SigmaskHow::SIG_BLOCK) else { return false };
        let is_set = tcsetpgrp(&self.device, group).is_ok();
        let _ = mask.thread_set_mask(); // It cannot fail with a mask that it returned.
        is_set
    }
}

fn is_pipe(stream: impl std::os::fd::AsFd) -> bool {
    let file = stream.as_fd().try_clone_to_owned().map(File::from);
    file.and_then(|file| file.metadata()).is_ok_and(|metadata| metadata.file_type().is_fifo())
}
