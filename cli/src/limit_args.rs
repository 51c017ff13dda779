//! The limit that the command line defines: in a limits file, or inline.

use std::path::{Path, PathBuf};

use clap::Args;
use serde::Serialize;
use serde_json::{Map, Value, json};

use crate::text::{escaped, quoted};
use crate::{CliError, Database, Result, input};
use pg_limiter::{Kind, Limit, Limits};

#[derive(Args, Debug, Serialize)]
#[group(skip)]
pub(super) struct LimitArgs {
    /// Read limits from this file: TOML, or JSON if its name ends in .json; `-` is standard input [default: the limits that are
    /// stored in the database]
    #[arg(long, help_heading = HEADING, value_name = "FILE", conflicts_with_all = INLINE.split(' '))]
    #[serde(skip)]
    pub(super) limits: Option<PathBuf>,
    /// Define the limit inline: its kind, token_bucket, fixed_window, sliding_window, calendar_window, concurrency with
    /// --capacity and --lease, or gate, which has no other option [default: token_bucket, calendar_window with --every,
    /// concurrency with --lease]
    #[arg(long, help_heading = HEADING)]
    kind: Option<Kind>,
    /// Tokens granted per period
    #[arg(long, help_heading = HEADING, value_name = "TOKENS", requires = "span", value_parser = finite, allow_negative_numbers = true)]
    rate: Option<f64>,
    /// Length of the period, such as 1500ms, 1m, "1h 30m" or 7d
    #[arg(long, help_heading = HEADING, value_name = "LENGTH", requires = "rate", group = "span")]
    period: Option<String>,
    /// Span of a calendar window: a number of hours, days, weeks, months or years, such as "1 month"
    #[arg(long, help_heading = HEADING, value_name = "SPAN", requires = "rate", group = "span")]
    every: Option<String>,
    /// Time zone of a calendar window, such as Europe/Berlin [default: UTC]
    #[arg(long, help_heading = HEADING, value_name = "NAME", requires = "every")]
    zone: Option<String>,
    /// Local date, or date and time, at which a calendar window starts, such as 2026-01-31 or "2026-01-31 09:00"
    /// [default: 1970-01-01, for weeks Monday, 1970-01-05]
    #[arg(long, help_heading = HEADING, value_name = "DATE", requires = "every")]
    anchor: Option<String>,
    /// Most tokens that the bucket holds [default: the rate]; the number of slots of a concurrency limit
    #[arg(long, help_heading = HEADING, value_name = "TOKENS", value_parser = finite, allow_negative_numbers = true)]
    capacity: Option<f64>,
    /// Most tokens that may be owed to reservations [default: unlimited]
    #[arg(long, help_heading = HEADING, value_name = "TOKENS", requires = "rate", value_parser = finite, allow_negative_numbers = true)]
    max_reserved: Option<f64>,
    /// Start of the grid of windows, as an offset from the Unix epoch, such as 7h [default: fixed_window: derived from
    /// its name and the key; sliding_window: 0s]
    #[arg(long, help_heading = HEADING, value_name = "LENGTH", requires = "rate")]
    start: Option<String>,
    /// Number of sub-intervals in which a sliding window counts [default: 1]
    #[arg(long, help_heading = HEADING, value_name = "COUNT", requires = "rate")]
    resolution: Option<u32>,
    /// Number of rows that the bucket is spread over [default: 1]
    #[arg(long, help_heading = HEADING, value_name = "ROWS", requires = "rate")]
    shards: Option<u32>,
    /// Time after which the slots of a concurrency limit are free, unless they are released or the lease is renewed; `limit` takes
    /// no slots, but `exec` does [default: 30s]
    #[arg(long, help_heading = HEADING, value_name = "LENGTH", requires = "capacity", conflicts_with = "rate")]
    lease: Option<String>,
}
const HEADING: &str = "The limit";
const INLINE: &str = "kind rate period every zone anchor capacity max_reserved start resolution shards lease";
const NO_LIMIT: &str = "no limit given";
const REMEDY: &str = "use --limits FILE, or --rate and --period; to check or peek a concurrency limit, --capacity and --lease; \
                      or store the limit in the database, with `pg-limiter limits apply`";

fn not_stored(name: &str, stored: &Limits) -> String {
    let (name, names) = (escaped(name), stored_names(stored));
    match stored.iter().next() {
        None => format!("{NO_LIMIT}, and the database stores no limit \"{name}\" and no other: {REMEDY}"),
        Some(_) => format!("no stored limit has the name \"{name}\"; {names}: correct the name, or {REMEDY}"),
    }
}

const LISTED: usize = 20;

pub(crate) fn stored_names(stored: &Limits) -> String {
    let names: Vec<&str> = stored.iter().map(|(name, _)| name).collect();
    match names.len() {
        0 => "no limit is stored".to_owned(),
        1 => format!("the only stored limit is {}", quoted(names)),
        2..=LISTED => format!("the stored limits are {}", quoted(names)),
        all => format!("the stored limits are {} and {} more", quoted(&names[..LISTED]), all - LISTED),
    }
}

/// Limits, and where they are from, for messages.
pub(super) struct Sourced {
    pub(super) limits: Limits,
    pub(super) source: String,
}

impl Sourced {
    /// The limits of the file, or else those that are stored in the named database; `None` if there are none.
    pub(super) async fn read(file: Option<&Path>, database: &Database) -> Result<Option<Self>> {
        if let Some(path) = file {
            return Ok(Some(Self { limits: input::read_limits(path)?, source: input::name(path) }));
        }
        let limits = database.stored_limits().await?;
        let has_some = limits.iter().next().is_some();
        Ok(has_some.then(|| Self { limits, source: "the database".to_owned() }))
    }
}

impl LimitArgs {
    /// Whether the options define no limit, so that those of the file or else the stored ones are meant.
    pub(super) fn defines_none(&self) -> bool {
        self.given().is_empty()
    }

    /// The limits of the file, which may lack `name`; or the inline limit under `name`; or else the stored limit of this name.
    pub(super) async fn limits(self, name: &str, database: &Database) -> Result<Limits> {
        match &self.limits {
            Some(path) => input::read_limits(path),
            None if self.defines_none() && database.is_named() => {
                let stored = database.stored_limits().await?;
                CliError::refuse_if(stored.get(name).is_none(), not_stored(name, &stored)).map(|()| stored)
            }
            None => {
                self.require_inline()?;
                let usual = if self.every.is_some() { Kind::CalendarWindow } else { Kind::TokenBucket };
                let limit = self.read(self.inline_kind().unwrap_or(usual), |_| true)?;
                let limits = Limits::new().define(name, limit).map_err(CliError::usage)?;
                input::warn(&limits);
                Ok(limits)
            }
        }
    }

    /// The inline limit. Without `--kind`, returns one limit of each of `kinds`, with the options that apply to it.
    pub(super) fn of_kinds(&self, kinds: &[Kind]) -> Result<Vec<Limit>> {
        let is_gate = self.kind == Some(Kind::Gate);
        CliError::refuse_if(is_gate, "a gate cannot be simulated: it takes no tokens; choose another kind")?;
        self.require_inline()?;
        if let Some(kind) = self.inline_kind() {
            return Ok(vec![self.read(kind, |_| true)?]);
        }
        let kinds: Vec<Kind> =
            kinds.iter().copied().filter(|kind| kind.has_option("every") == self.every.is_some()).collect();
        let is_ignored = |option: &&String| !kinds.iter().any(|kind| kind.has_option(option));
        if let Some(option) = self.given().keys().find(is_ignored) {
            let kinds = kinds.iter().map(|kind| kind.as_str()).collect::<Vec<_>>().join(", ");
            let option = option.replace('_', "-");
            return Err(CliError::usage(format!(
                "--{option} applies to none of the kinds that are simulated, {kinds}: leave it out, or choose a kind with --kind"
            )));
        }
        kinds.iter().map(|kind| self.read(*kind, |option| kind.has_option(option))).collect()
    }

    fn inline_kind(&self) -> Option<Kind> {
        self.kind.or(self.lease.is_some().then_some(Kind::Concurrency))
    }

    fn require_inline(&self) -> Result<()> {
        let is_inline = self.rate.is_some() || matches!(self.inline_kind(), Some(Kind::Gate | Kind::Concurrency));
        CliError::refuse_if(!is_inline, format_args!("{NO_LIMIT}: {REMEDY}"))
    }

    /// The options that define a limit and are given, by their names in a limits file.
    fn given(&self) -> Map<String, Value> {
        let Value::Object(mut options) = json!(self) else { return Map::new() };
        options.retain(|_, value| !value.is_null());
        options
    }

    /// Parses the options as a limits file is parsed, so that the same rules and messages apply.
    fn read(&self, kind: Kind, takes: impl Fn(&str) -> bool) -> Result<Limit> {
        let mut fields = self.given();
        fields.retain(|name, _| takes(name));
        fields.insert("kind".to_owned(), json!(kind));
        serde_json::from_value(fields.into()).map_err(CliError::usage)
    }
}

pub(super) fn finite(text: &str) -> Result<f64, String> {
    text.parse().ok().filter(|number: &f64| number.is_finite()).ok_or_else(|| "not a finite number".to_owned())
}
