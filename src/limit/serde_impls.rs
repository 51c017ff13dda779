//! Serializes a limit with the fields of a limits file.

use serde::{Deserialize, Deserializer, Serialize, Serializer, de};

use crate::error::InvalidLimit;
use crate::limit::kind::DEFAULT_LEASE;
use crate::limit::limit::Options;
use crate::limit::{Kind, Limit, format_micros, parse_micros};

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Spec {
    kind: Kind,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    rate: Option<f64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    period: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    capacity: Option<f64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    max_reserved: Option<f64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    start: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    resolution: Option<u32>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    shards: Option<u32>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    lease: Option<String>,
}

impl Spec {
    /// Returns the rate and the period in microseconds; for a concurrency limit, its capacity and its lease.
    fn amount<E: de::Error>(&mut self) -> Result<(f64, i64), E> {
        let given = [
            ("rate", self.rate.is_some()),
            ("period", self.period.is_some()),
            ("capacity", self.capacity.is_some()),
            ("lease", self.lease.is_some()),
        ];
        if let Some((name, _)) = given.into_iter().find(|(name, given)| *given && !self.kind.has_option(name)) {
            // A sliding window refuses a capacity later, together with its other options.
            if name != "capacity" {
                return Err(E::custom(InvalidLimit::new(format!("{name} does not apply to a {}", self.kind))));
            }
        }
        let length =
            |name: &str, text: &str| parse_micros(text).map_err(|reason| E::custom(format!("{name}: {reason}")));
        if self.kind == Kind::Concurrency {
            let slots = self.capacity.take().ok_or_else(|| E::missing_field("capacity"))?;
            let lease = self.lease.as_deref().map(|lease| length("lease", lease)).transpose()?;
            return Ok((slots, lease.unwrap_or(DEFAULT_LEASE.as_micros() as i64)));
        }
        let rate = self.rate.ok_or_else(|| E::missing_field("rate"))?;
        let period = self.period.as_deref().ok_or_else(|| E::missing_field("period"))?;
        Ok((rate, length("period", period)?))
    }
}

impl Serialize for Limit {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let counts_slots = self.kind() == Kind::Concurrency;
        let length = format_micros(self.period_micros());
        Spec {
            kind: self.kind(),
            rate: (!counts_slots).then_some(self.rate()),
            period: (!counts_slots).then(|| length.clone()),
            capacity: if counts_slots { Some(self.rate()) } else { self.given_capacity() },
            lease: counts_slots.then_some(length),
            max_reserved: self.max_reserved(),
            start: self.start_micros().map(format_micros),
            resolution: self.given_resolution(),
            shards: self.given_shards(),
        }
        .serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for Limit {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let mut spec = Spec::deserialize(deserializer)?;
        let (rate, period) = spec.amount()?;
        let start = spec.start.as_deref().map(parse_micros).transpose();
        let start = start.map_err(|reason| de::Error::custom(format!("start: {reason}")))?;
        Options {
            capacity: spec.capacity,
            max_reserved: spec.max_reserved,
            start: start.map(Ok),
            resolution: spec.resolution,
            shards: spec.shards,
            ..Options::new(spec.kind, rate, Ok(period))
        }
        .check()
        .map_err(de::Error::custom)
    }
}
