//! Generates the times of calls.

use rand_pcg::Pcg64;
use rand_pcg::rand_core::{Rng, SeedableRng};

use crate::error::CliError;
use crate::text::{format_micros, grouped, parse_micros, plain};

/// The most calls in a run.
pub(super) const MOST_CALLS: usize = 1_000_000;

#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(super) enum Shape {
    /// Evenly spaced calls
    Constant,
    /// Random, independent calls (a Poisson process)
    Poisson,
    /// Random bursts of calls with random pauses between them (an interrupted Poisson process)
    Bursts,
}

/// A rate: a number of calls per length of time.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Pace {
    pub(super) calls: f64,
    /// In microseconds.
    pub(super) per: i64,
}

/// Traffic from time 0 on.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Traffic {
    pub(super) shape: Shape,
    /// The average rate; for bursts, the rate within a burst.
    pub(super) pace: Pace,
    /// In microseconds.
    pub(super) length: i64,
    /// The average number of calls in a burst.
    pub(super) burst: f64,
    /// The average pause between bursts, in microseconds.
    pub(super) pause: i64,
    /// How long calls hold slots, on average, in microseconds.
    pub(super) hold: Option<i64>,
    pub(super) seed: u64,
}

impl std::str::FromStr for Pace {
    type Err = String;

    /// Parses `2/s`, `90/m` or `10/1m 30s`.
    fn from_str(text: &str) -> Result<Self, String> {
        let example = || format!("\"{text}\" is not a rate of calls like 2/s, 90/m or 1000/h");
        let (calls, per) = text.split_once('/').ok_or_else(example)?;
        let calls = calls.trim().parse::<f64>().ok().filter(|calls| calls.is_finite() && *calls > 0.0);
        let per = per.trim();
        let per = if per.starts_with(|c: char| c.is_ascii_digit()) { per.to_owned() } else { format!("1{per}") };
        let per = parse_micros(&per).ok().filter(|per| *per > 0);
        Ok(Self { calls: calls.ok_or_else(example)?, per: per.ok_or_else(example)? })
    }
}

impl Pace {
    /// Microseconds from one call to the next, on average.
    fn gap(&self) -> f64 {
        self.per as f64 / self.calls
    }

    fn describe(&self) -> String {
        format!("{} calls per {}", plain(self.calls), format_micros(self.per))
    }
}

impl Traffic {
    /// Checks that there are at most [`MOST_CALLS`] calls on average.
    pub(super) fn check(&self) -> Result<(), CliError> {
        let calls = self.length as f64 / self.pace.gap();
        if calls > MOST_CALLS as f64 {
            return Err(CliError::usage(format!(
                "{} for {} are more than {} calls: use fewer --calls or a shorter --for",
                self.pace.describe(),
                format_micros(self.length),
                grouped(MOST_CALLS as u64)
            )));
        }
        Ok(())
    }

    /// The time of each call, in order and before the end. The same seed gives the same times.
    pub(super) fn times(&self) -> Vec<i64> {
        let mut chance = Chance(Pcg64::seed_from_u64(self.seed));
        let (gap, end) = (self.pace.gap(), self.length as f64);
        let mut times = Vec::new();
        match self.shape {
            Shape::Constant => {
                let calls = (0..).map(|nth| (f64::from(nth) * gap).round());
                times.extend(calls.take_while(|at| *at < end).map(|at| at as i64));
            }
            Shape::Poisson => {
                let mut at = chance.exponential(gap);
                while at < end {
                    times.push(at as i64);
                    at += chance.exponential(gap);
                }
            }
            Shape::Bursts => {
                let mut start = 0.0;
                while start < end {
                    let stop = start + chance.exponential(self.burst * gap);
                    let mut at = start + chance.exponential(gap);
                    while at < stop.min(end) {
                        times.push(at as i64);
                        at += chance.exponential(gap);
                    }
                    start = stop + chance.exponential(self.pause as f64);
                }
            }
        }
        times
    }

    /// How long each of the calls holds its slots; empty if calls hold none.
    pub(super) fn holds(&self, calls: usize) -> Vec<i64> {
        let Some(hold) = self.hold else { return Vec::new() };
        // Other numbers than those of the times.
        let mut chance = Chance(Pcg64::seed_from_u64(!self.seed));
        let mut next = || match self.shape {
            Shape::Constant => hold,
            Shape::Poisson | Shape::Bursts => (chance.exponential(hold as f64) as i64).max(1),
        };
        (0..calls).map(|_| next()).collect()
    }

    pub(super) fn describe(&self) -> String {
        let Self { shape, pace, length, burst, pause, hold, seed } = self;
        let (pace, length) = (pace.describe(), format_micros(*length));
        let mean = if *shape == Shape::Constant { "" } else { " on average" };
        let held = hold.map(|hold| format!(", slots held for {}{mean}", format_micros(hold))).unwrap_or_default();
        match shape {
            Shape::Constant => format!("constant traffic: {pace}, for {length}{held}"),
            Shape::Poisson => format!("poisson traffic: {pace} on average, for {length}, seed {seed}{held}"),
            Shape::Bursts => format!(
                "bursts: about {} calls at {pace}, then a pause of about {}, for {length}, seed {seed}{held}",
                plain(*burst),
                format_micros(*pause)
            ),
        }
    }
}

/// A random number generator that guarantees the same numbers for a seed.
struct Chance(Pcg64);

impl Chance {
    /// An exponentially distributed number above 0, by inverting the distribution function.
    fn exponential(&mut self, mean: f64) -> f64 {
        const STEPS: f64 = (1_u64 << 53) as f64;
        let part = ((self.0.next_u64() >> 11) + 1) as f64 / STEPS;
        (-part.ln() * mean).max(f64::MIN_POSITIVE)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: i64 = 1_000_000;

    fn traffic(shape: Shape, seed: u64) -> Traffic {
        let pace = Pace { calls: 50.0, per: SECOND };
        Traffic { shape, pace, length: 1000 * SECOND, burst: 20.0, pause: 2 * SECOND, hold: Some(SECOND), seed }
    }

    #[test]
    fn paces_are_parsed() {
        for (text, calls, per) in
            [("2/s", 2.0, SECOND), ("0.5/m", 0.5, 60 * SECOND), ("10 / 1m 30s", 10.0, 90 * SECOND)]
        {
            assert_eq!(text.parse(), Ok(Pace { calls, per }), "{text}");
        }
        for text in ["", "2", "2/", "/s", "-1/s", "0/s", "NaN/s", "inf/s", "2/0s", "2/soon", "2/-1s"] {
            assert!(text.parse::<Pace>().unwrap_err().contains("like 2/s"), "{text}");
        }
        assert_eq!(Pace { calls: 2.0, per: SECOND }.describe(), "2 calls per 1s");
        assert_eq!(Pace { calls: 2.0, per: 10 * SECOND }.describe(), "2 calls per 10s");
    }

    #[test]
    fn constant_traffic_is_evenly_spaced() {
        let times = traffic(Shape::Constant, 1).times();
        assert_eq!((times.len(), times[0], times[49_999]), (50_000, 0, 999_980_000));
        assert!(times.windows(2).all(|pair| pair[1] - pair[0] == 20_000));
    }

    #[test]
    fn random_traffic_has_the_mean_and_the_spread_of_its_kind() {
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
    fn a_seed_always_gives_the_same_traffic() {
        let first = |seed| traffic(Shape::Poisson, seed).times()[..3].to_vec();
        assert_eq!(first(1), first(1));
        assert_ne!(first(1), first(2));
        let held = |shape, seed| traffic(shape, seed).holds(10_000);
        assert_eq!(held(Shape::Poisson, 1), held(Shape::Poisson, 1));
        assert_ne!(held(Shape::Poisson, 1), held(Shape::Poisson, 2));
        let mean = held(Shape::Bursts, 1).iter().sum::<i64>() / 10_000;
        assert!((950_000..1_050_000).contains(&mean), "{mean}");
        assert_eq!(held(Shape::Constant, 1), [SECOND; 10_000]);
    }
}
