//! Stolen CPU time: the time that other machines on the same host took from this one, from `/proc/stat`. It is unknown on
//! systems without this file. Figures measured while much is stolen mean little.

use std::fs;

/// The CPU time of all cores since the machine started.
#[derive(Clone, Copy, Debug)]
pub(crate) struct CpuTimes {
    stolen: u64,
    /// The time in which a core waited, or was another machine's.
    unused: u64,
    total: u64,
}

impl CpuTimes {
    pub(crate) fn now() -> Option<Self> {
        let stat = fs::read_to_string("/proc/stat").ok()?;
        // user, nice, system, idle, iowait, irq, softirq, steal. The fields after these are included in user and nice.
        let fields = stat.lines().next()?.strip_prefix("cpu ")?.split_ascii_whitespace().take(8);
        let times: Vec<u64> = fields.map(str::parse).collect::<Result<_, _>>().ok()?;
        let stolen = *times.get(7)?;
        Some(Self { stolen, unused: times.get(3)? + times.get(4)? + stolen, total: times.iter().sum() })
    }

    /// The time in which the cores worked for this machine, in units of 1/100 s.
    #[allow(dead_code, reason = "not every benchmark measures it")]
    pub(crate) const fn used(self) -> u64 {
        self.total.saturating_sub(self.unused)
    }

    /// The percentage of CPU time that was stolen since `before`.
    pub(crate) fn stolen_since(before: Option<Self>) -> Option<f64> {
        let (before, now) = (before?, Self::now()?);
        let total = now.total.checked_sub(before.total).filter(|total| *total > 0)?;
        Some(now.stolen.saturating_sub(before.stolen) as f64 * 100.0 / total as f64)
    }
}
