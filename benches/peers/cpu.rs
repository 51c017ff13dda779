//! The CPU time of a server, which is a process and its children, from `/proc`. It is unknown on systems without `/proc`.

use std::fs;
use std::time::Duration;

/// Linux reports times to user space in 1/100 s, on every architecture.
pub(crate) const TICK: Duration = Duration::from_millis(10);

/// A server's processes, identified by the first one.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Processes(pub(crate) Option<u32>);

impl Processes {
    /// The CPU time since the server's start. It includes children that have ended, which the kernel adds to their parent.
    pub(crate) fn cpu_time(self) -> Option<Duration> {
        let root = self.0?;
        let mut ticks = Times::of(root)?.ticks;
        for entry in fs::read_dir("/proc").ok()?.flatten() {
            let pid = entry.file_name().to_str().and_then(|name| name.parse().ok());
            if let Some(times) = pid.and_then(Times::of)
                && times.parent == root
            {
                ticks += times.ticks;
            }
        }
        TICK.checked_mul(u32::try_from(ticks).ok()?)
    }
}

struct Times {
    parent: u32,
    /// The time of the process and of its children that have ended.
    ticks: u64,
}

impl Times {
    fn of(pid: u32) -> Option<Self> {
        let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
        // The name, in brackets, can contain any characters. The fields after it are state, parent and so on; from the 12th
        // they are utime, stime, cutime and cstime.
        let (_, fields) = stat.rsplit_once(')')?;
        let mut fields = fields.split_ascii_whitespace();
        let parent = fields.nth(1)?.parse().ok()?;
        let ticks = fields.skip(9).take(4).map(|ticks| ticks.parse::<u64>().unwrap_or(0)).sum();
        Some(Self { parent, ticks })
    }
}
