use std::path::PathBuf;
use std::time::Duration;

use clap::Args;

use crate::length::parse_length;
use crate::top::app::Filters;

pub(crate) const TOP_EXIT_CODES: &str = "\
Exit codes:
  0  ended with q or Ctrl-C, or printed
  2  an invalid argument or file
  3  the database is unavailable or lacks the schema, this is no terminal, or something else failed
  128 and the number of the signal that ended it

Keys: ? lists them. `top` writes nothing, and reads a large table only through indexes and samples. The role needs USAGE on the
schema, SELECT on its tables rate_limits, jobs and groups, and for balances EXECUTE on its functions _limits_file and _decide.";

#[derive(Args, Debug)]
pub(crate) struct TopArgs {
    /// Show only limits with this text in their names
    #[arg(long, value_name = "TEXT")]
    limit: Option<String>,
    /// Show only keys that begin with this text
    #[arg(long, value_name = "PREFIX")]
    key: Option<String>,
    /// Show only queues with this text in their names
    #[arg(long, value_name = "TEXT")]
    queue: Option<String>,
    /// Show capacities and balances of the limits that this file defines: TOML, or JSON if its name ends in .json; `-` is
    /// standard input [default: the limits that are stored in the database]
    #[arg(long, value_name = "FILE")]
    pub(super) limits: Option<PathBuf>,
    /// Time between two reads of the database, from 200ms to 1h; longer if a read takes long
    #[arg(long, value_name = "LENGTH", default_value = "2s", value_parser = interval)]
    pub(super) interval: Duration,
    /// Show short hashes instead of keys, made with a secret of this run
    #[arg(long)]
    pub(super) hide_keys: bool,
    /// Read the database twice, print what a terminal would show, and exit
    #[arg(long)]
    pub(super) once: bool,
    /// Print JSON, one object; with --once
    #[arg(long, requires = "once")]
    pub(super) json: bool,
}

impl TopArgs {
    pub(super) fn filters(&self) -> Filters {
        let text = |text: &Option<String>| text.clone().unwrap_or_default();
        Filters([text(&self.limit), text(&self.key), text(&self.queue)])
    }
}

fn interval(text: &str) -> Result<Duration, String> {
    let length = parse_length(text)?;
    let range = Duration::from_millis(200)..=Duration::from_secs(3600);
    if range.contains(&length) { Ok(length) } else { Err("must be from 200ms to 1h".to_owned()) }
}
