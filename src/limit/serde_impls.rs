//! Serializes a limit with the fields of a limits file.

use serde::{Deserialize, Deserializer, Serialize, Serializer, de};

use crate::limit::limit::Options;
use crate::limit::{Kind, Limit, format_micros, parse_micros};

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Spec {
    kind: Kind,
    rate: f64,
    period: String,
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
}

impl Serialize for Limit {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        Spec {
            kind: self.kind(),
            rate: self.rate(),
            period: format_micros(self.period_micros()),
            capacity: self.given_capacity(),
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
        let spec = Spec::deserialize(deserializer)?;
        let period = parse_micros(&spec.period).map_err(|reason| de::Error::custom(format!("period: {reason}")))?;
        let start = spec.start.as_deref().map(parse_micros).transpose();
        let start = start.map_err(|reason| de::Error::custom(format!("start: {reason}")))?;
        Options {
            capacity: spec.capacity,
            max_reserved: spec.max_reserved,
            start: start.map(Ok),
            resolution: spec.resolution,
            shards: spec.shards,
            ..Options::new(spec.kind, spec.rate, Ok(period))
        }
        .check()
        .map_err(de::Error::custom)
    }
}
