//! A limit on the command line: from a limits file, or inline.

use std::path::{Path, PathBuf};

use clap::Args;
use serde_json::{Map, Value};

use crate::error::CliError;
use crate::input;
use pg_limiter::{Kind, Limit, Limits};

#[derive(Args, Debug)]
#[group(skip)]
pub(super) struct LimitArgs {
    /// Take the limit from this file: TOML, or JSON if it is called *.json; `-` is standard input
    #[arg(long, help_heading = HEADING, value_name = "FILE", conflicts_with_all = INLINE)]
    limits: Option<PathBuf>,
    /// An inline limit instead: its kind, token_bucket, fixed_window or sliding_window [default: token_bucket]
    #[arg(long, help_heading = HEADING, requires = "rate")]
    kind: Option<Kind>,
    /// Tokens per period
    #[arg(long, help_heading = HEADING, value_name = "TOKENS", requires = "period", value_parser = finite, allow_negative_numbers = true)]
    rate: Option<f64>,
    /// The period, like 1500ms, 1m, "1h 30m", 7d
    #[arg(long, help_heading = HEADING, value_name = "LENGTH", requires = "rate")]
    period: Option<String>,
    /// The most tokens held [default: the rate]
    #[arg(long, help_heading = HEADING, value_name = "TOKENS", requires = "rate", value_parser = finite, allow_negative_numbers = true)]
    capacity: Option<f64>,
    /// The most tokens owed to reservations [default: no bound]
    #[arg(long, help_heading = HEADING, value_name = "TOKENS", requires = "rate", value_parser = finite, allow_negative_numbers = true)]
    max_reserved: Option<f64>,
    /// The phase of the grid of windows, counted from the Unix epoch, like 7h
    #[arg(long, help_heading = HEADING, value_name = "LENGTH", requires = "rate")]
    start: Option<String>,
    /// The number of sub-intervals of a sliding window [default: 1]
    #[arg(long, help_heading = HEADING, value_name = "PARTS", requires = "rate")]
    resolution: Option<u32>,
    /// Over how many rows the bucket is spread [default: 1]
    #[arg(long, help_heading = HEADING, value_name = "ROWS", requires = "rate")]
    shards: Option<u32>,
}

const HEADING: &str = "The limit";
const INLINE: [&str; 8] = ["kind", "rate", "period", "capacity", "max_reserved", "start", "resolution", "shards"];

impl LimitArgs {
    /// Limits in which this one should be; if it is not, the call says so.
    pub(super) fn limits(self, name: &str) -> Result<Limits, CliError> {
        match &self.limits {
            Some(path) => input::read_limits(path),
            None if self.rate.is_none() => {
                Err(CliError::usage("which limit? Give --limits FILE, or --rate and --period"))
            }
            None => {
                let limits = Limits::new().define(name, self.inline()?).map_err(CliError::usage)?;
                input::warn(&limits);
                Ok(limits)
            }
        }
    }

    /// The limits file, if it is one.
    pub(super) fn file(&self) -> Option<&Path> {
        self.limits.as_deref()
    }

    /// The inline limit of the kind that is given; if none is, one of each of these, with the options that apply to it.
    pub(super) fn of_kinds(&self, kinds: &[Kind]) -> Result<Vec<Limit>, CliError> {
        if self.rate.is_none() {
            return Err(CliError::usage("which limit? Give --limits FILE, or --rate and --period"));
        }
        match self.kind {
            Some(kind) => Ok(vec![self.read(kind, |_| true)?]),
            None => kinds.iter().map(|kind| self.read(*kind, |option| kind.has_option(option))).collect(),
        }
    }

    fn inline(&self) -> Result<Limit, CliError> {
        self.read(self.kind.unwrap_or(Kind::TokenBucket), |_| true)
    }

    /// Read as a limits file is, so that the same rules and messages hold.
    fn read(&self, kind: Kind, takes: impl Fn(&str) -> bool) -> Result<Limit, CliError> {
        let fields = [
            ("kind", Some(Value::from(kind.as_str()))),
            ("rate", self.rate.map(Value::from)),
            ("period", self.period.as_deref().map(Value::from)),
            ("capacity", self.capacity.map(Value::from)),
            ("max_reserved", self.max_reserved.map(Value::from)),
            ("start", self.start.as_deref().map(Value::from)),
            ("resolution", self.resolution.map(Value::from)),
            ("shards", self.shards.map(Value::from)),
        ];
        let fields: Map<String, Value> = fields
            .into_iter()
            .filter(|(name, _)| takes(name))
            .filter_map(|(name, value)| Some((name.to_owned(), value?)))
            .collect();
        serde_json::from_value(Value::Object(fields)).map_err(CliError::usage)
    }
}

pub(super) fn finite(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(number) if number.is_finite() => Ok(number),
        _ => Err("it is not a finite number".to_owned()),
    }
}
