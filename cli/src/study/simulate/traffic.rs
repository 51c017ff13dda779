//! The arguments, and the traffic that they describe: the times of its calls.

use std::sync::Arc;

use clap::{Args, ValueEnum};
use rand_pcg::Pcg64;
use rand_pcg::rand_core::{Rng, SeedableRng};

use crate::error::{CliError, Result};
use crate::limit_args::{LimitArgs, Sourced, finite};
use crate::study::plot::PlotArgs;
use crate::study::refuse_kind;
use crate::text::{format_micros, grouped, parse_micros, period_micros, plain};
use pg_limiter::{Kind, Limit};

#[derive(Args, Debug)]
#[command(next_help_heading = "The traffic")]
pub(crate) struct SimulateArgs {
    #[command(flatten)]
    pub(super) limit: LimitArgs,
    /// Simulate this limit of the limits file, or this stored limit; repeat for several limits, printed in this order [default: all of them]
    #[arg(long = "limit", help_heading = "The limit", value_name = "NAME")]
    only: Vec<String>,
    /// Key of the calls; fixed windows of different keys begin at different times
    #[arg(long, help_heading = "The limit", value_name = "KEY", default_value = "", hide_default_value = true)]
    pub(super) key: String,
    /// Pattern of the calls; every limit is offered the same calls
    #[arg(long, value_enum, value_name = "KIND", default_value = "poisson")]
    traffic: Shape,
    /// Average rate of the calls (bursts: within a burst), such as 2/s, 90/m or 1000/h [default: twice the highest rate of
    /// the limits; bursts: ten times the highest rate]
    #[arg(long, value_name = "N/TIME", value_parser = Pace::parse)]
    calls: Option<Pace>,
    /// Length of the simulation, such as 5m [default: ten times the longest period]
    #[arg(long = "for", value_name = "LENGTH")]
    length: Option<String>,
    /// Average number of calls in a burst [default: twice the largest capacity]
    #[arg(long, value_name = "N", value_parser = finite)]
    burst: Option<f64>,
    /// Average pause between bursts, such as 30s [default: the longest period]
    #[arg(long, value_name = "LENGTH")]
    pause: Option<String>,
    /// Random seed; the same seed gives the same calls
    #[arg(long, value_name = "N", default_value = "1")]
    seed: u64,
    /// Time for which an admitted call holds its slots of a concurrency limit, such as 2s: every call with --traffic
    /// constant, otherwise on average (exponentially distributed). The lease is not renewed
    #[arg(long, value_name = "LENGTH")]
    hold: Option<String>,
    /// Tokens that each call takes, or slots
    #[arg(long, value_name = "TOKENS", default_value = "1", value_parser = finite, allow_negative_numbers = true)]
    pub(super) count: f64,
    /// Headroom: a call is admitted only if at least so many tokens are left in the bucket after it
    #[arg(long, value_name = "TOKENS", value_parser = finite, allow_negative_numbers = true, conflicts_with = "reserve")]
    pub(super) leave: Option<f64>,
    /// Make reservations: calls take tokens before they are available, and wait for them; sliding windows cannot reserve
    #[arg(long)]
    pub(super) reserve: bool,
    /// Whether a denied call is dropped or retried
    #[arg(long, value_enum, value_name = "WHAT", default_value = "drop")]
    pub(super) denied: OnDenial,
    #[command(flatten)]
    pub(super) plot: PlotArgs,
    /// Print JSON, one object per limit and line, with the tokens of every bar of the picture
    #[arg(long, help_heading = None::<&str>)]
    pub(super) json: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(super) enum OnDenial {
    /// A denied call is not retried
    Drop,
    /// A denied call is retried after its retry_after, until it is admitted or the simulation ends
    Retry,
}

impl SimulateArgs {
    /// The limits to simulate, in the order of the output: those of the file or the stored ones, or else the inline one.
    pub(crate) fn limits(&self, sourced: Option<Sourced>) -> Result<Vec<(Arc<str>, Limit)>> {
        let Some(sourced) = sourced else {
            if let Some(name) = self.only.first() {
                let remedy = match self.limit.defines_none() {
                    true => "add --limits FILE, or --database-url URL",
                    false => "leave out --limit, or give --limits FILE in place of the options that define a limit",
                };
                let reason = format_args!("--limit {name} names a limit of a file, or a stored one: {remedy}");
                return Err(CliError::usage(reason));
            }
            let is_simulated = |kind: &Kind| kind.has_option("rate") && (!self.reserve || kind.can_reserve());
            let kinds: Vec<Kind> = Kind::ALL.iter().copied().filter(is_simulated).collect();
            let limits = self.limit.of_kinds(&kinds)?;
            return Ok(limits.into_iter().map(|limit| (limit.kind().as_str().into(), limit)).collect());
        };
        let named: Vec<(Arc<str>, Limit)> = if self.only.is_empty() {
            let all = sourced.limits.iter().map(|(name, limit)| (name.into(), *limit));
            let (gates, with_tokens): (Vec<_>, Vec<_>) = all.partition(|(_, limit)| limit.kind() == Kind::Gate);
            if with_tokens.is_empty() { gates } else { with_tokens }
        } else {
            crate::study::named(&sourced, "--limit", &self.only)?
        };
        refuse_kind(&named, Kind::Gate, "is a gate, which takes no tokens to simulate: leave it out")?;
        let source = &sourced.source;
        CliError::refuse_if(named.is_empty(), format_args!("{source} defines no limits: define one there"))?;
        Ok(named)
    }

    /// The traffic of the arguments. Defaults are derived from the limits.
    pub(super) fn traffic(&self, limits: &[(Arc<str>, Limit)]) -> Result<Traffic> {
        let length = |name: &str, text: &Option<String>, usual: i64| match text {
            Some(text) => match parse_micros(text) {
                Ok(micros @ 1..=LONGEST) => Ok(micros),
                Ok(_) => Err(CliError::usage(format!("{name} {text}: the length is not between 1us and 36525days"))),
                Err(error) => Err(CliError::usage(format!("{name}: {error}"))),
            },
            None => Ok(usual.min(LONGEST)),
        };
        let slots = limits.iter().find(|(_, limit)| limit.kind() == Kind::Concurrency);
        let is_needless = slots.is_none() && self.hold.is_some();
        CliError::refuse_if(is_needless, "--hold requires a concurrency limit: no other kind has slots to hold")?;
        if self.hold.is_none() {
            let why = "is a concurrency limit: add --hold LENGTH, the time for which a call holds its slots";
            refuse_kind(limits, Kind::Concurrency, why)?;
        }
        let hold = slots.map(|_| length("--hold", &self.hold, 1)).transpose()?;
        // The slots of a concurrency limit serve its capacity in each holding time.
        let held = |limit: &Limit| hold.filter(|_| limit.kind() == Kind::Concurrency);
        let period = |limit: &Limit| held(limit).unwrap_or_else(|| period_micros(limit));
        let rate = |limit: &Limit| limit.rate() / period(limit) as f64;
        let limits = || limits.iter().map(|(_, limit)| limit);
        let longest = limits().map(period).max().unwrap_or(1);
        let times = if self.traffic == Shape::Bursts { 10.0 } else { 2.0 };
        let fastest = limits().max_by(|a, b| rate(a).total_cmp(&rate(b)));
        let usual = fastest.map(|limit| Pace { calls: times * limit.rate(), per: period(limit) });
        let capacity = limits().map(Limit::capacity).fold(0.0, f64::max);
        let of_bursts = [("--burst", self.burst.is_some()), ("--pause", self.pause.is_some())];
        if self.traffic != Shape::Bursts {
            CliError::refuse_without("--traffic bursts", "other traffic", &of_bursts)?;
        }
        let is_low = self.burst.is_some_and(|burst| burst < 1.0);
        CliError::refuse_if(is_low, "--burst is less than 1: use 1 call or more")?;
        let traffic = Traffic {
            shape: self.traffic,
            pace: self.calls.or(usual).unwrap_or(Pace { calls: 1.0, per: 1_000_000 }),
            length: length("--for", &self.length, longest.saturating_mul(10))?,
            burst: self.burst.unwrap_or((2.0 * capacity).max(1.0)),
            pause: length("--pause", &self.pause, longest)?,
            hold,
            seed: self.seed,
        };
        let are_too_many = traffic.length as f64 / traffic.pace.gap() > MOST_CALLS as f64;
        let (pace, time, most) = (traffic.pace.describe(), format_micros(traffic.length), grouped(MOST_CALLS as u64));
        let why = format_args!("{pace} for {time} are more than {most} calls: use fewer --calls or a shorter --for");
        CliError::refuse_if(are_too_many, why)?;
        Ok(traffic)
    }
}

/// A hundred years, as for periods.
const LONGEST: i64 = 3_155_760_000_000_000;

pub(super) const MOST_CALLS: usize = 1_000_000;

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(super) enum Shape {
    /// Evenly spaced calls
    Constant,
    /// Random, independent calls (a Poisson process)
    Poisson,
    /// Random bursts of calls with random pauses between them (an interrupted Poisson process)
    Bursts,
}

/// A number of calls per length of time, in microseconds.
#[derive(Clone, Copy, Debug)]
pub(super) struct Pace {
    calls: f64,
    per: i64,
}

/// Traffic from time 0 on. Lengths are in microseconds; `burst`, a number of calls, `pause` and `hold` are averages.
pub(super) struct Traffic {
    shape: Shape,
    /// The average rate; for bursts, the rate within a burst.
    pace: Pace,
    pub(super) length: i64,
    burst: f64,
    pause: i64,
    hold: Option<i64>,
    seed: u64,
}

impl Pace {
    /// Parses `2/s`, `90/m` or `10/1m 30s`.
    fn parse(text: &str) -> Result<Self, String> {
        let example = || format!("\"{text}\" is not a rate of calls like 2/s, 90/m or 1000/h");
        let (calls, per) = text.split_once('/').ok_or_else(example)?;
        let calls = calls.trim().parse::<f64>().ok().filter(|calls| calls.is_finite() && *calls > 0.0);
        let per = per.trim();
        let per = if per.starts_with(|c: char| c.is_ascii_digit()) { per.to_owned() } else { format!("1{per}") };
        let per = parse_micros(&per).ok().filter(|per| *per > 0);
        Ok(Self { calls: calls.ok_or_else(example)?, per: per.ok_or_else(example)? })
    }

    /// Microseconds from one call to the next, on average.
    fn gap(&self) -> f64 {
        self.per as f64 / self.calls
    }

    fn describe(&self) -> String {
        format!("{} calls per {}", plain(self.calls), format_micros(self.per))
    }
}

impl Traffic {
    /// The time of each call, in order and before the end. The same seed gives the same times.
    pub(super) fn times(&self) -> Vec<i64> {
        let (gap, end) = (self.pace.gap(), self.length as f64);
        if self.shape == Shape::Constant {
            let calls = (0..).map(|nth| (f64::from(nth) * gap).round());
            return calls.take_while(|at| *at < end).map(|at| at as i64).collect();
        }
        let mut chance = Pcg64::seed_from_u64(self.seed);
        let (mut times, mut start) = (Vec::new(), 0.0);
        while start < end {
            // Calls without pauses are one burst, until the end.
            let stop =
                if self.shape == Shape::Bursts { start + exponential(&mut chance, self.burst * gap) } else { end };
            let mut at = start + exponential(&mut chance, gap);
            while at < stop.min(end) {
                times.push(at as i64);
                at += exponential(&mut chance, gap);
            }
            start = stop + exponential(&mut chance, self.pause as f64);
        }
        times
    }

    /// How long each of the calls holds its slots; empty if calls hold none.
    pub(super) fn holds(&self, calls: usize) -> Vec<i64> {
        let Some(hold) = self.hold else { return Vec::new() };
        // Other numbers than those of the times.
        let mut chance = Pcg64::seed_from_u64(!self.seed);
        let mut next = || (exponential(&mut chance, hold as f64) as i64).max(1);
        (0..calls).map(|_| if self.shape == Shape::Constant { hold } else { next() }).collect()
    }

    pub(super) fn describe(&self) -> String {
        let Self { shape, pace, length, burst, pause, hold, seed } = self;
        let (pace, burst) = (pace.describe(), plain(*burst));
        let [length, pause] = [length, pause].map(|micros| format_micros(*micros));
        let mean = if *shape == Shape::Constant { "" } else { " on average" };
        let held = hold.map(|hold| format!(", slots held for {}{mean}", format_micros(hold))).unwrap_or_default();
        match shape {
            Shape::Constant => format!("constant traffic: {pace}, for {length}{held}"),
            Shape::Poisson => format!("poisson traffic: {pace} on average, for {length}, seed {seed}{held}"),
            Shape::Bursts => format!(
                "bursts: about {burst} calls at {pace}, then a pause of about {pause}, for {length}, seed {seed}{held}"
            ),
        }
    }
}

/// An exponentially distributed number above 0, by inverting the distribution function.
fn exponential(chance: &mut Pcg64, mean: f64) -> f64 {
    const STEPS: f64 = (1_u64 << 53) as f64;
    let part = ((chance.next_u64() >> 11) + 1) as f64 / STEPS;
    (-part.ln() * mean).max(f64::MIN_POSITIVE)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::study::plot::SECOND;

    fn traffic(shape: Shape, seed: u64) -> Traffic {
        let pace = Pace { calls: 50.0, per: SECOND };
        Traffic { shape, pace, length: 1000 * SECOND, burst: 20.0, pause: 2 * SECOND, hold: Some(SECOND), seed }
    }

    #[test]
    fn constant_traffic_is_even_and_random_traffic_has_its_mean_and_its_spread() {
        let times = traffic(Shape::Constant, 1).times();
        assert_eq!((times.len(), times[0], times[49_999]), (50_000, 0, 999_980_000));
        assert!(times.windows(2).all(|pair| pair[1] - pair[0] == 20_000));
        for seed in 1..=5 {
            let times = traffic(Shape::Poisson, seed).times();
            // Within six standard deviations of a Poisson distribution with this mean.
            assert!((times.len() as f64 - 50_000.0).abs() < 6.0 * 50_000_f64.sqrt(), "{}", times.len());
            // The standard deviation of exponentially distributed gaps equals their mean.
            let gaps: Vec<f64> = times.windows(2).map(|pair| (pair[1] - pair[0]) as f64).collect();
            let mean = gaps.iter().sum::<f64>() / gaps.len() as f64;
            let variance = gaps.iter().map(|gap| (gap - mean).powi(2)).sum::<f64>() / gaps.len() as f64;
            assert!((variance.sqrt() / mean - 1.0).abs() < 0.05, "{mean} {variance}");

            // A burst takes 0.4 s and a pause 2 s, so a sixth of the time has calls.
            let bursts = traffic(Shape::Bursts, seed).times();
            assert!((6_000..11_000).contains(&bursts.len()), "{}", bursts.len());
            let pauses = bursts.windows(2).filter(|pair| pair[1] - pair[0] > SECOND / 2).count();
            assert!((200..500).contains(&pauses), "{pauses}");
            assert!(bursts.is_sorted() && bursts.iter().all(|at| (0..1000 * SECOND).contains(at)));
        }
    }

    #[test]
    fn a_seed_always_gives_the_same_holding_times() {
        let held = |shape, seed| traffic(shape, seed).holds(10_000);
        assert_eq!(held(Shape::Poisson, 1), held(Shape::Poisson, 1));
        assert_ne!(held(Shape::Poisson, 1), held(Shape::Poisson, 2));
        let mean = held(Shape::Bursts, 1).iter().sum::<i64>() / 10_000;
        assert!((950_000..1_050_000).contains(&mean), "{mean}");
        assert_eq!(held(Shape::Constant, 1), [SECOND; 10_000]);
    }
}
