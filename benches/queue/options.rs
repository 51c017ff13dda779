//! The command line.

use std::time::Duration;

use crate::Failure;
use crate::report::WORKS;

pub(crate) const HELP: &str = "\
cargo bench --bench queue --features embedded -- [options]
  --rounds N      how often everything is measured (default 5)
  --seconds S     how long each measurement of enqueueing takes (default 2)
  --jobs N        how many jobs are worked off (default 10000)
  --only A,B      only these works: enqueue, enqueue_one_group, enqueue_100, enqueue_transaction, work,
                  work_one_group, delays
  --quick         see that it works: 1 round of 0.3 s, 300 jobs; its figures say little
  --json          one JSON object on standard output";

#[derive(Debug)]
pub(crate) struct Options {
    pub(crate) rounds: usize,
    pub(crate) time: Duration,
    pub(crate) jobs: i64,
    pub(crate) quick: bool,
    pub(crate) json: bool,
    /// Empty: all works.
    only: Vec<String>,
}

impl Options {
    /// Nothing if help is asked for.
    pub(crate) fn read(mut arguments: impl Iterator<Item = String>) -> Result<Option<Self>, Failure> {
        let (mut rounds, mut seconds, mut jobs) = (None, None, None);
        let (mut json, mut quick, mut only) = (false, false, Vec::new());
        while let Some(argument) = arguments.next() {
            let mut value = || arguments.next().ok_or_else(|| format!("{argument} takes a value\n{HELP}"));
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
        if let Some(unknown) = only.iter().find(|work| !WORKS.contains(&work.as_str())) {
            return Err(format!("unknown work {unknown}, known: {}", WORKS.join(", ")).into());
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

    pub(crate) fn wants(&self, work: &str) -> bool {
        self.only.is_empty() || self.only.iter().any(|wanted| wanted == work)
    }
}
