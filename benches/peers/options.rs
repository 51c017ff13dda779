//! The command line.

use std::time::Duration;

use crate::Failure;
use crate::names::WORKS;

pub(crate) const HELP: &str = "\
cargo bench --bench peers -- [options]
  --rounds N      the number of rounds (default 5)
  --seconds S     the length of each measurement (default 2)
  --only A,B      run only these workloads: lone, lone_sliding, hot, uniform, zipf, four, groups, sliding_256,
                  fixed_256, concurrency_256, gateway, gateway_one_key, allowance_256, denied, sliding, transaction_limit,
                  transaction_two, transaction_sliding, processes, shards, first_touch, rows, sums, table_size,
                  old_snapshot
  --quick         check that the benchmark works: 1 round of 0.3 s and small tables; the figures mean little
  --json          print one JSON object
By default, one Redis in memory and one durable Redis are started. With REDIS_URL, that Redis is measured instead, in place
of the one in memory.";

#[derive(Debug)]
pub(crate) struct Options {
    pub(crate) rounds: usize,
    pub(crate) time: Duration,
    pub(crate) json: bool,
    pub(crate) quick: bool,
    /// The workloads to run. Empty: all.
    only: Vec<String>,
}

impl Options {
    /// Reads the options. Returns `None` for `--help`.
    pub(crate) fn read(mut arguments: impl Iterator<Item = String>) -> Result<Option<Self>, Failure> {
        let (mut rounds, mut seconds) = (None, None);
        let (mut json, mut quick, mut only) = (false, false, Vec::new());
        while let Some(argument) = arguments.next() {
            let mut value = || arguments.next().ok_or_else(|| format!("{argument} needs a value\n{HELP}"));
            match argument.as_str() {
                "--rounds" => rounds = Some(value()?.parse::<usize>()?.max(1)),
                "--seconds" => seconds = Some(Duration::try_from_secs_f64(value()?.parse()?)?),
                "--only" => only.extend(value()?.split(',').map(ToOwned::to_owned)),
                "--quick" => quick = true,
                "--json" => json = true,
                "--help" | "-h" => return Ok(None),
                "--bench" => {} // from cargo
                _ => return Err(format!("unknown option {argument}\n{HELP}").into()),
            }
        }
        if let Some(unknown) = only.iter().find(|work| !WORKS.contains(&work.as_str())) {
            return Err(format!("unknown workload {unknown}: use one of {}", WORKS.join(", ")).into());
        }
        let (usual_rounds, usual_time) =
            if quick { (1, Duration::from_millis(300)) } else { (5, Duration::from_secs(2)) };
        let (rounds, time) = (rounds.unwrap_or(usual_rounds), seconds.unwrap_or(usual_time));
        Ok(Some(Self { rounds, time, json, quick, only }))
    }

    pub(crate) fn wants(&self, work: &str) -> bool {
        self.only.is_empty() || self.only.iter().any(|wanted| wanted == work)
    }

    /// Returns `quick` for a quick run, and `full` otherwise.
    pub(crate) const fn size(&self, full: usize, quick: usize) -> usize {
        if self.quick { quick } else { full }
    }
}
