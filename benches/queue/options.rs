//! The command line.

use std::time::Duration;

use crate::Failure;

pub(crate) const HELP: &str = "\
cargo bench --bench queue --features embedded -- [options]
  --rounds N      how often everything is measured (default 5)
  --seconds S     how long each measurement of enqueueing takes (default 2)
  --jobs N        how many jobs are worked off (default 10000)
  --quick         see that it works: 1 round of 0.3 s, 300 jobs; its figures say little";

#[derive(Debug)]
pub(crate) struct Options {
    pub(crate) rounds: usize,
    pub(crate) time: Duration,
    pub(crate) jobs: i64,
    pub(crate) quick: bool,
}

impl Options {
    /// Nothing if help is asked for.
    pub(crate) fn read(mut arguments: impl Iterator<Item = String>) -> Result<Option<Self>, Failure> {
        let mut options = Self { rounds: 5, time: Duration::from_secs(2), jobs: 10_000, quick: false };
        while let Some(argument) = arguments.next() {
            let mut value = || arguments.next().ok_or_else(|| format!("{argument} takes a value\n{HELP}"));
            match argument.as_str() {
                "--rounds" => options.rounds = value()?.parse::<usize>()?.max(1),
                "--seconds" => options.time = Duration::try_from_secs_f64(value()?.parse()?)?,
                "--jobs" => options.jobs = value()?.parse::<i64>()?.max(1),
                "--quick" => options = Self { rounds: 1, time: Duration::from_millis(300), jobs: 300, quick: true },
                "--help" | "-h" => return Ok(None),
                "--bench" => {} // from cargo
                _ => return Err(format!("unknown option {argument}\n{HELP}").into()),
            }
        }
        Ok(Some(options))
    }
}
