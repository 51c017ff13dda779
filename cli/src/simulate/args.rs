use std::sync::Arc;

use clap::{Args, ValueEnum};

use crate::error::CliError;
use crate::input;
use crate::length::{parse_micros, period_micros};
use crate::limit_args::{LimitArgs, finite};
use crate::plot::PlotArgs;
use crate::simulate::traffic::{Pace, Shape, Traffic};
use pg_limiter::{Kind, Limit};

#[derive(Args, Debug)]
pub(crate) struct SimulateArgs {
    #[command(flatten)]
    limit: LimitArgs,
    /// Of the limits file, this limit; several times for several, in this order [default: all of them]
    #[arg(long = "limit", help_heading = "The limit", value_name = "NAME")]
    only: Vec<String>,
    /// Whose calls they are: fixed windows of different keys begin at different times
    #[arg(long, help_heading = "The limit", value_name = "KEY", default_value = "", hide_default_value = true)]
    pub(super) key: String,
    #[command(flatten)]
    traffic: TrafficArgs,
    #[command(flatten)]
    pub(super) plot: PlotArgs,
    /// Print JSON, an object a line for each limit, with what each bar of the picture has
    #[arg(long)]
    pub(super) json: bool,
}

#[derive(Args, Debug)]
#[group(skip)]
struct TrafficArgs {
    /// How the calls come. All limits are offered the same ones
    #[arg(long, help_heading = HEADING, value_enum, value_name = "KIND", default_value = "poisson")]
    traffic: Shape,
    /// How many come on average (of bursts: within one), like 2/s, 90/m or 1000/h [default: twice what the limit of the
    /// highest rate lets through; of bursts: ten times]
    #[arg(long, help_heading = HEADING, value_name = "N/TIME")]
    calls: Option<Pace>,
    /// For how long, like 5m [default: ten of the longest period]
    #[arg(long = "for", help_heading = HEADING, value_name = "LENGTH")]
    length: Option<String>,
    /// How many calls a burst has, on average [default: twice the largest capacity]
    #[arg(long, help_heading = HEADING, value_name = "N", value_parser = finite)]
    burst: Option<f64>,
    /// How long it is quiet between bursts, on average [default: the longest period]
    #[arg(long, help_heading = HEADING, value_name = "LENGTH")]
    pause: Option<String>,
    /// What chance starts from: the same seed gives the same calls
    #[arg(long, help_heading = HEADING, value_name = "N", default_value = "1")]
    seed: u64,
    /// How many tokens a call asks for
    #[arg(long, help_heading = HEADING, value_name = "TOKENS", default_value = "1", value_parser = finite, allow_negative_numbers = true)]
    count: f64,
    /// Calls take tokens before they are there, and go ahead after a wait; sliding windows cannot
    #[arg(long, help_heading = HEADING)]
    reserve: bool,
    /// What becomes of a call that is denied
    #[arg(long, help_heading = HEADING, value_enum, value_name = "WHAT", default_value = "drop")]
    refused: Refused,
}

const HEADING: &str = "The traffic";

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(super) enum Refused {
    /// It never comes back
    Drop,
    /// It comes back at the time it was told, again and again
    Retry,
}

impl SimulateArgs {
    /// In the order in which they are shown.
    pub(super) fn limits(&self) -> Result<Vec<(Arc<str>, Limit)>, CliError> {
        let Some(path) = self.limit.file() else {
            if let Some(name) = self.only.first() {
                return Err(CliError::usage(format!("--limit {name}: in which file? Give --limits FILE")));
            }
            let kinds: Vec<Kind> =
                Kind::ALL.iter().copied().filter(|kind| !self.reserves() || kind.can_reserve()).collect();
            let limits = self.limit.of_kinds(&kinds)?;
            return Ok(limits.into_iter().map(|limit| (limit.kind().as_str().into(), limit)).collect());
        };
        let limits = input::read_limits(path)?;
        let named: Vec<(Arc<str>, Limit)> = if self.only.is_empty() {
            limits.iter().map(|(name, limit)| (name.into(), *limit)).collect()
        } else {
            let find = |name: &String| {
                let no_such = || CliError::usage(format!("{} has no limit \"{name}\"", input::name(path)));
                limits.get(name).map(|limit| (name.as_str().into(), *limit)).ok_or_else(no_such)
            };
            self.only.iter().map(find).collect::<Result<_, _>>()?
        };
        for (place, (name, _)) in named.iter().enumerate() {
            if named[..place].iter().any(|(other, _)| other == name) {
                return Err(CliError::usage(format!("--limit {name} is given twice")));
            }
        }
        if named.is_empty() {
            return Err(CliError::usage(format!("{} has no limits", input::name(path))));
        }
        Ok(named)
    }

    /// With what the limits suggest where nothing is said.
    pub(super) fn traffic(&self, limits: &[(Arc<str>, Limit)]) -> Result<Traffic, CliError> {
        let args = &self.traffic;
        let by_rate = |a: &&Limit, b: &&Limit| rate(a).total_cmp(&rate(b));
        let limits = || limits.iter().map(|(_, limit)| limit);
        let period = limits().map(period_micros).max().unwrap_or(1);
        let times = if args.traffic == Shape::Bursts { 10.0 } else { 2.0 };
        let usual =
            limits().max_by(by_rate).map(|limit| Pace { calls: times * limit.rate(), per: period_micros(limit) });
        let capacity = limits().map(Limit::capacity).fold(0.0, f64::max);
        let length = |name: &str, text: &Option<String>, usual: i64| match text {
            Some(text) => match parse_micros(text) {
                Ok(micros @ 1..=LONGEST) => Ok(micros),
                Ok(_) => Err(CliError::usage(format!("{name} {text}: that is not between 1us and 36525days"))),
                Err(error) => Err(CliError::usage(format!("{name}: {error}"))),
            },
            None => Ok(usual.min(LONGEST)),
        };
        let bursts = [("--burst", args.burst.is_some()), ("--pause", args.pause.is_some())];
        if let (false, Some((option, _))) = (args.traffic == Shape::Bursts, bursts.iter().find(|(_, given)| *given)) {
            return Err(CliError::usage(format!("{option} is for --traffic bursts")));
        }
        if args.burst.is_some_and(|burst| burst < 1.0) {
            return Err(CliError::usage("--burst: a burst has 1 call or more"));
        }
        let traffic = Traffic {
            shape: args.traffic,
            pace: args.calls.or(usual).unwrap_or(Pace { calls: 1.0, per: 1_000_000 }),
            length: length("--for", &args.length, period.saturating_mul(10))?,
            burst: args.burst.unwrap_or((2.0 * capacity).max(1.0)),
            pause: length("--pause", &args.pause, period)?,
            seed: args.seed,
        };
        traffic.check()?;
        Ok(traffic)
    }

    pub(super) fn limits_are_inline(&self) -> bool {
        self.limit.file().is_none()
    }

    pub(super) const fn count(&self) -> f64 {
        self.traffic.count
    }

    pub(super) const fn reserves(&self) -> bool {
        self.traffic.reserve
    }

    pub(super) fn retries(&self) -> bool {
        self.traffic.refused == Refused::Retry
    }
}

/// A hundred years, like the longest period.
const LONGEST: i64 = 3_155_760_000_000_000;

fn rate(limit: &Limit) -> f64 {
    limit.rate() / period_micros(limit) as f64
}
