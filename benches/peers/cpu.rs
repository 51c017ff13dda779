//! The CPU time of a server, from `/proc`: of a process and its children. Nothing where there is no `/proc`.

use std::fs;
use std::time::Duration;

/// Linux tells user space times in 1/100 s, on every architecture.
const TICK: Duration = Duration::from_millis(10);

/// Where a server's processes are: its first one.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Processes(pub(crate) Option<u32>);

impl Processes {
    /// What they have used since the server's start. Children that have ended are in it: they are added to their parent.
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
    /// Of the process and those of its children that have ended.
    ticks: u64,
}

impl Times {
    fn of(pid: u32) -> Option<Self> {
        let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
        // The name, in brackets, may hold anything. After it: state, parent, .. and from the 12th on utime, stime, cutime, cstime.
        let (_, fields) = stat.rsplit_once(')')?;
        let mut fields = fields.split_ascii_whitespace();
        let parent = fields.nth(1)?.parse().ok()?;
        let ticks = fields.skip(9).take(4).map(|ticks| ticks.parse::<u64>().unwrap_or(0)).sum();
        Some(Self { parent, ticks })
    }
}
