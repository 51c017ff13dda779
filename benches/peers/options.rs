//! The command line.

use std::time::Duration;

use crate::Failure;
use crate::names::WORKS;

pub(crate) const HELP: &str = "\
cargo bench --bench peers -- [options]
  --rounds N      how often everything is measured (default 5)
  --seconds S     how long each measurement takes (default 2)
  --only A,B      only these works: lone, lone_sliding, hot, uniform, zipf, four, groups, sliding_256, fixed_256,
                  denied, sliding, transaction_limit, transaction_two, transaction_sliding, processes, shards,
                  first_touch, rows, table_size, old_snapshot
  --quick         see that it works: 1 round of 0.3 s, small tables; its figures say little
  --json          one JSON object on standard output
REDIS_URL names a Redis to measure instead of starting some: it counts as the one in memory.";

#[derive(Debug)]
pub(crate) struct Options {
    pub(crate) rounds: usize,
    pub(crate) time: Duration,
    pub(crate) json: bool,
    pub(crate) quick: bool,
    /// Nothing: all.
    only: Vec<String>,
}

impl Options {
    /// Nothing if help is asked for.
    pub(crate) fn read(mut arguments: impl Iterator<Item = String>) -> Result<Option<Self>, Failure> {
        let (mut rounds, mut seconds) = (None, None);
        let (mut json, mut quick, mut only) = (false, false, Vec::new());
        while let Some(argument) = arguments.next() {
            let mut value = || arguments.next().ok_or_else(|| format!("{argument} takes a value\n{HELP}"));
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
            return Err(format!("unknown work {unknown}, known: {}", WORKS.join(", ")).into());
        }
        let (usual_rounds, usual_time) =
            if quick { (1, Duration::from_millis(300)) } else { (5, Duration::from_secs(2)) };
        let (rounds, time) = (rounds.unwrap_or(usual_rounds), seconds.unwrap_or(usual_time));
        Ok(Some(Self { rounds, time, json, quick, only }))
    }

    pub(crate) fn wants(&self, work: &str) -> bool {
        self.only.is_empty() || self.only.iter().any(|wanted| wanted == work)
    }

    /// A size, and the one for a quick run.
    pub(crate) const fn size(&self, full: usize, quick: usize) -> usize {
        if self.quick { quick } else { full }
    }
}
