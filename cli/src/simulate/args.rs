use std::sync::Arc;

use clap::{Args, ValueEnum};

use crate::database::Database;
use crate::error::CliError;
use crate::limit_args::{LimitArgs, Sourced, finite};
use crate::plot::PlotArgs;
use crate::simulate::traffic::{Pace, Shape, Traffic};
use crate::text::{parse_micros, period_micros};
use pg_limiter::{Kind, Limit};

#[derive(Args, Debug)]
pub(crate) struct SimulateArgs {
    #[command(flatten)]
    pub(super) limit: LimitArgs,
    /// Simulate this limit of the limits file, or this stored limit; repeat for several limits, printed in this order [default: all of them]
    #[arg(long = "limit", help_heading = "The limit", value_name = "NAME")]
    only: Vec<String>,
    /// Key of the calls; fixed windows of different keys begin at different times
    #[arg(long, help_heading = "The limit", value_name = "KEY", default_value = "", hide_default_value = true)]
    pub(super) key: String,
    #[command(flatten)]
    pub(super) traffic: TrafficArgs,
    #[command(flatten)]
    pub(super) plot: PlotArgs,
    /// Print JSON, one object per limit and line, with the tokens of every bar of the picture
    #[arg(long)]
    pub(super) json: bool,
}

#[derive(Args, Debug)]
#[group(skip)]
pub(super) struct TrafficArgs {
    /// Pattern of the calls; every limit is offered the same calls
    #[arg(long, help_heading = HEADING, value_enum, value_name = "KIND", default_value = "poisson")]
    traffic: Shape,
    /// Average rate of the calls (bursts: within a burst), such as 2/s, 90/m or 1000/h [default: twice the highest rate of
    /// the limits; bursts: ten times the highest rate]
    #[arg(long, help_heading = HEADING, value_name = "N/TIME")]
    calls: Option<Pace>,
    /// Length of the simulation, such as 5m [default: ten times the longest period]
    #[arg(long = "for", help_heading = HEADING, value_name = "LENGTH")]
    length: Option<String>,
    /// Average number of calls in a burst [default: twice the largest capacity]
    #[arg(long, help_heading = HEADING, value_name = "N", value_parser = finite)]
    burst: Option<f64>,
    /// Average pause between bursts, such as 30s [default: the longest period]
    #[arg(long, help_heading = HEADING, value_name = "LENGTH")]
    pause: Option<String>,
    /// Random seed; the same seed gives the same calls
    #[arg(long, help_heading = HEADING, value_name = "N", default_value = "1")]
    seed: u64,
    /// Time for which an admitted call holds its slots of a concurrency limit, such as 2s: every call with --traffic
    /// constant, otherwise on average (exponentially distributed). The lease is not renewed
    #[arg(long, help_heading = HEADING, value_name = "LENGTH")]
    hold: Option<String>,
    /// Tokens that each call takes, or slots
    #[arg(long, help_heading = HEADING, value_name = "TOKENS", default_value = "1", value_parser = finite, allow_negative_numbers = true)]
    pub(super) count: f64,
    /// Headroom: a call is admitted only if at least so many tokens are left in the bucket after it
    #[arg(
        long, help_heading = HEADING, value_name = "TOKENS", value_parser = finite, allow_negative_numbers = true,
        conflicts_with = "reserve"
    )]
    pub(super) leave: Option<f64>,
    /// Make reservations: calls take tokens before they are available, and wait for them; sliding windows cannot reserve
    #[arg(long, help_heading = HEADING)]
    pub(super) reserve: bool,
    /// Whether a denied call is dropped or retried
    #[arg(long, help_heading = HEADING, value_enum, value_name = "WHAT", default_value = "drop")]
    denied: OnDenial,
}

const HEADING: &str = "The traffic";

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(super) enum OnDenial {
    /// A denied call is not retried
    Drop,
    /// A denied call is retried after its retry_after, until it is admitted or the simulation ends
    Retry,
}

impl SimulateArgs {
    /// The stored limits, if the options mean them and there are any.
    pub(super) async fn stored(&self, database: &Database) -> Result<Option<Sourced>, CliError> {
        if self.limit.means_stored() { Sourced::stored(database).await } else { Ok(None) }
    }

    /// The limits to simulate, in the order of the output: those of the file, the inline one, or else the stored ones.
    pub(crate) fn limits(&self, stored: Option<Sourced>) -> Result<Vec<(Arc<str>, Limit)>, CliError> {
        let sourced = match self.limit.file() {
            Some(path) => Some(Sourced::file(path)?),
            None => stored,
        };
        let Some(Sourced { limits, source }) = sourced else {
            if let Some(name) = self.only.first() {
                return Err(CliError::usage(format!(
                    "--limit {name} names a limit of a file, or a stored one: add --limits FILE, or --database-url URL"
                )));
            }
            let is_simulated = |kind: &Kind| kind.has_option("rate") && (!self.traffic.reserve || kind.can_reserve());
            let kinds: Vec<Kind> = Kind::ALL.iter().copied().filter(is_simulated).collect();
            let limits = self.limit.of_kinds(&kinds)?;
            return Ok(limits.into_iter().map(|limit| (limit.kind().as_str().into(), limit)).collect());
        };
        let named: Vec<(Arc<str>, Limit)> = if self.only.is_empty() {
            let all = limits.iter().map(|(name, limit)| (name.into(), *limit));
            let (gates, with_tokens): (Vec<_>, Vec<_>) = all.partition(|(_, limit)| limit.kind() == Kind::Gate);
            if with_tokens.is_empty() { gates } else { with_tokens }
        } else {
            let find = |name: &String| {
                let no_such = || {
                    CliError::usage(format!("{source} defines no limit \"{name}\": define it there, or name another"))
                };
                limits.get(name).map(|limit| (name.as_str().into(), *limit)).ok_or_else(no_such)
            };
            self.only.iter().map(find).collect::<Result<_, _>>()?
        };
        for (place, (name, limit)) in named.iter().enumerate() {
            if limit.kind() == Kind::Gate {
                return Err(is_gate(name));
            }
            if named[..place].iter().any(|(other, _)| other == name) {
                return Err(CliError::usage(format!("--limit {name} is given twice: give it once")));
            }
        }
        if named.is_empty() {
            return Err(CliError::usage(format!("{source} defines no limits: define one there")));
        }
        Ok(named)
    }

    /// The traffic of the arguments. Defaults are derived from the limits.
    pub(super) fn traffic(&self, limits: &[(Arc<str>, Limit)]) -> Result<Traffic, CliError> {
        let args = &self.traffic;
        let length = |name: &str, text: &Option<String>, usual: i64| match text {
            Some(text) => match parse_micros(text) {
                Ok(micros @ 1..=LONGEST) => Ok(micros),
                Ok(_) => Err(CliError::usage(format!("{name} {text}: the length is not between 1us and 36525days"))),
                Err(error) => Err(CliError::usage(format!("{name}: {error}"))),
            },
            None => Ok(usual.min(LONGEST)),
        };
        let slots = limits.iter().find(|(_, limit)| limit.kind() == Kind::Concurrency);
        let hold = match (slots, &args.hold) {
            (Some(_), Some(_)) => Some(length("--hold", &args.hold, 1)?),
            (Some((name, _)), None) => {
                return Err(CliError::usage(format!(
                    "\"{name}\" is a concurrency limit: add --hold LENGTH, the time for which a call holds its slots"
                )));
            }
            (None, Some(_)) => {
                return Err(CliError::usage("--hold requires a concurrency limit: no other kind has slots to hold"));
            }
            (None, None) => None,
        };
        // The slots of a concurrency limit serve its capacity in each holding time.
        let period = |limit: &Limit| match (limit.kind(), hold) {
            (Kind::Concurrency, Some(hold)) => hold,
            _ => period_micros(limit),
        };
        let rate = |limit: &Limit| limit.rate() / period(limit) as f64;
        let limits = || limits.iter().map(|(_, limit)| limit);
        let longest = limits().map(period).max().unwrap_or(1);
        let times = if args.traffic == Shape::Bursts { 10.0 } else { 2.0 };
        let fastest = limits().max_by(|a, b| rate(a).total_cmp(&rate(b)));
        let usual = fastest.map(|limit| Pace { calls: times * limit.rate(), per: period(limit) });
        let capacity = limits().map(Limit::capacity).fold(0.0, f64::max);
        let bursts = [("--burst", args.burst.is_some()), ("--pause", args.pause.is_some())];
        if let (false, Some((option, _))) = (args.traffic == Shape::Bursts, bursts.iter().find(|(_, given)| *given)) {
            return Err(CliError::usage(format!("{option} requires --traffic bursts")));
        }
        if args.burst.is_some_and(|burst| burst < 1.0) {
            return Err(CliError::usage("--burst is less than 1: use 1 call or more"));
        }
        let traffic = Traffic {
            shape: args.traffic,
            pace: args.calls.or(usual).unwrap_or(Pace { calls: 1.0, per: 1_000_000 }),
            length: length("--for", &args.length, longest.saturating_mul(10))?,
            burst: args.burst.unwrap_or((2.0 * capacity).max(1.0)),
            pause: length("--pause", &args.pause, longest)?,
            hold,
            seed: args.seed,
        };
        traffic.check()?;
        Ok(traffic)
    }

    pub(super) fn retries(&self) -> bool {
        self.traffic.denied == OnDenial::Retry
    }
}

/// A hundred years, as for periods.
const LONGEST: i64 = 3_155_760_000_000_000;

fn is_gate(name: &str) -> CliError {
    CliError::usage(format!("\"{name}\" is a gate, which takes no tokens to simulate: leave it out"))
}
