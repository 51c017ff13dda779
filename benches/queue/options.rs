//! The command line.

use std::time::Duration;

use crate::Failure;
use crate::names::{CHURN, WORKS};

pub(crate) const HELP: &str = "\
cargo bench --bench queue --features embedded -- [options]
  --rounds N      the number of rounds (default 5)
  --seconds S     the length of each measurement that enqueues (default 2)
  --jobs N        the number of jobs in each measurement that runs jobs (default 10000)
  --only A,B      run only these workloads: enqueue, enqueue_one_group, enqueue_100, enqueue_transaction, work,
                  work_one_group, delays; or churn: a million jobs an hour for the time of --seconds, with a snapshot that grows a
                  minute old, and the sizes of the tables meanwhile
  --quick         check that the benchmark works: 1 round of 0.3 s and 300 jobs; the figures mean little
  --json          print one JSON object";

#[derive(Debug)]
pub(crate) struct Options {
    pub(crate) rounds: usize,
    pub(crate) time: Duration,
    pub(crate) jobs: i64,
    pub(crate) quick: bool,
    pub(crate) json: bool,
    /// The workloads to run. Empty: all.
    only: Vec<String>,
}

impl Options {
    /// Reads the options. Returns `None` for `--help`.
    pub(crate) fn read(mut arguments: impl Iterator<Item = String>) -> Result<Option<Self>, Failure> {
        let (mut rounds, mut seconds, mut jobs) = (None, None, None);
        let (mut json, mut quick, mut only) = (false, false, Vec::new());
        while let Some(argument) = arguments.next() {
            let mut value = || arguments.next().ok_or_else(|| format!("{argument} needs a value\n{HELP}"));
            match argument.as_str() {
                "--rounds" => rounds = Some(value()?.parse::<usize>()?.max(1)),
                "--seconds" => seconds = Some(Duration::try_from_secs_f64(value()?.parse()?)?),
                "--jobs" => jobs = Some(value()?.parse::<i64>()?.max(1)),
                "--only" => only.extend(value()?.split(',').map(ToOwned::to_owned)),
                "--quick" => quick = true,
                "--json" => json = true,
                "--help" | "-h" => return Ok(None),
                "--bench" => {} // from cargo
                _ => return Err(format!("unknown option {argument}\n{HELP}").into()),
            }
        }
        if let Some(unknown) = only.iter().find(|work| **work != CHURN && !WORKS.contains(&work.as_str())) {
            return Err(format!("unknown workload {unknown}: use one of {}, {CHURN}", WORKS.join(", ")).into());
        }
        let (usual_rounds, usual_time, usual_jobs) =
            if quick { (1, Duration::from_millis(300), 300) } else { (5, Duration::from_secs(2), 10_000) };
        Ok(Some(Self {
            rounds: rounds.unwrap_or(usual_rounds),
            time: seconds.unwrap_or(usual_time),
            jobs: jobs.unwrap_or(usual_jobs),
            quick,
            json,
            only,
        }))
    }

    pub(crate) fn wants_churn(&self) -> bool {
        self.only.iter().any(|wanted| wanted == CHURN)
    }

    pub(crate) fn wants(&self, work: &str) -> bool {
        self.only.is_empty() || self.only.iter().any(|wanted| wanted == work)
    }
}
