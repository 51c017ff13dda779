//! The command line.

use std::fmt::Display;
use std::str::FromStr;
use std::time::Duration;

use pg_limiter::{Durability, Length, LimiterConfig, Schema};

use super::Failure;

pub(crate) const HELP: &str = "\
cargo bench --bench soak --features embedded -- [options]
  --time T        how long to make calls, from 1s to 7d (default 1m)
  --callers N     the approximate number of concurrent callers, divided among all kinds of work (default 256)
  --lanes N       the number of batches that each limiter may run concurrently (default 2)
  --durability D  full: a commit waits for the disk, if the server is configured so (default); relaxed: it does not
  --no-faults     do not cause faults (ended sessions and statements, locked rows, time-outs)
  --schema NAME   the schema of the limiter's tables and functions (default rate_limit)
  --json          print one JSON object per line

The run makes calls of every kind: over the limiter's own connections and over a pool, at SERIALIZABLE and READ COMMITTED,
on one limit and on groups, with shards, reservations, headroom, calendar windows, leases of slots, blocks and idempotency
keys. Calls run in transactions that commit or roll back, in units of work, with futures that are dropped, and on keys that
are used once. `prune` runs every 3 seconds; it also removes idle rows of other limits, as it always does.

The run uses the database of DATABASE_URL. Without it, the run starts a private PostgreSQL server, and removes it at the
end. The run has its own limits, keys and table, and uses up to about 60 connections. It removes its rows and its table at
the end. If the process is killed, remove everything whose name begins with `pg-limiter soak`.

Unless you set --no-faults, the run ends its own sessions with pg_terminate_backend, cancels its own statements with
pg_cancel_backend, locks rows for up to a second, and sets short time-outs. It touches no other sessions. If the role may
not cause a fault, the run prints a note and skips that fault.

The run prints a line every 10 seconds, or about 20 lines in all if it is shorter than 200 seconds. It passes if there is

  no violation   The run keeps its own count of the tokens, and compares it with the balances in the database:
                 - admitted <= spent <= admitted + unknown outcomes, and never more than the limit allows
                 - all limits of a group have spent the same
                 - units of work wrote as many rows as they spent tokens
                 - each idempotency key spent one token, and every call with it got the same answer
                 - no call took the headroom of another
                 - leases never held more slots than there are; all slots are free in the end, and none was released twice
                 - a blocked key was denied, took nothing, and no other key was denied by its gate
                 - a limit that refills admitted at most what it held and what was refilled
                 - a sliding window admitted at most its rate in any time of one period less one of its parts. (The oldest
                   part is weighted by how much of it remains in the window, so a whole period may admit more.)
                 An error of a kind that the faults do not explain is a violation, too.
  no growth      For the memory of this process, and for the size of each table with its indexes: the median of the last
                 quarter of the run is at most 1.2 times the median of the second quarter, plus 8 MiB. This is not judged
                 in runs of less than a minute.

Exit codes: 0 the run passed; 1 a violation was found, or memory or a table grew; 2 the options are invalid; 3 the database
is unavailable or lacks the schema, another error occurred, or the run was interrupted.";

const SHORTEST: Duration = Duration::from_secs(1);
/// A week.
const LONGEST: Duration = Duration::from_secs(7 * 86_400);
const MOST_CALLERS: u32 = 65_536;
const MOST_LANES: usize = 128;

#[derive(Debug)]
pub(crate) struct Options {
    pub(super) time: Duration,
    pub(super) callers: u32,
    pub(super) lanes: usize,
    pub(super) durability: Durability,
    pub(super) faults: bool,
    pub(super) schema: Schema,
    pub(crate) json: bool,
    /// `None`: a private server. This is not an option of the command line, because other users could read the password there.
    pub(crate) database_url: Option<String>,
}

impl Options {
    /// Reads the options. Returns `None` for `--help`.
    pub(crate) fn read(mut arguments: impl Iterator<Item = String>) -> Result<Option<Self>, Failure> {
        let mut options = Self {
            time: Duration::from_secs(60),
            callers: 256,
            lanes: LimiterConfig::default().lanes,
            durability: Durability::Full,
            faults: true,
            schema: Schema::default(),
            json: false,
            database_url: None,
        };
        while let Some(argument) = arguments.next() {
            let mut value = || arguments.next().ok_or_else(|| format!("{argument} needs a value\n{HELP}"));
            match argument.as_str() {
                "--time" => options.time = time(&value()?).map_err(|error| format!("--time: {error}"))?,
                "--callers" => options.callers = number(&argument, &value()?, MOST_CALLERS)?,
                "--lanes" => options.lanes = number(&argument, &value()?, MOST_LANES)?,
                "--durability" => options.durability = durability(&value()?)?,
                "--no-faults" => options.faults = false,
                "--schema" => options.schema = Schema::new(&value()?).map_err(|error| format!("--schema: {error}"))?,
                "--json" => options.json = true,
                "--help" | "-h" => return Ok(None),
                "--bench" => {} // from cargo
                _ => return Err(format!("unknown option {argument}\n{HELP}").into()),
            }
        }
        Ok(Some(options))
    }
}

fn time(text: &str) -> Result<Duration, Failure> {
    let time: Length = text.parse()?;
    if !(SHORTEST..=LONGEST).contains(&Duration::from(time)) {
        return Err(format!("{time} is not between 1s and 7d").into());
    }
    Ok(time.into())
}

/// Reads a number from 1 to `most`.
fn number<N: FromStr + PartialOrd + From<u8> + Display>(option: &str, text: &str, most: N) -> Result<N, String> {
    let number = text.parse().ok().filter(|number| (&N::from(1)..=&most).contains(&number));
    number.ok_or_else(|| format!("{option}: \"{text}\" is not a number from 1 to {most}"))
}

fn durability(text: &str) -> Result<Durability, String> {
    match text {
        "full" => Ok(Durability::Full),
        "relaxed" => Ok(Durability::Relaxed),
        _ => Err(format!("--durability: \"{text}\" is neither full nor relaxed")),
    }
}
