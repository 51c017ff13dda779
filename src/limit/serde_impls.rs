//! Serializes a limit with the fields of a limits file.

use serde::{Deserialize, Deserializer, Serialize, Serializer, de};

use crate::limit::limit::Options;
use crate::limit::{Kind, Limit, format_micros, parse_micros};

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Spec {
    kind: Kind,
    /// Required, except for a gate.
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
}

impl Spec {
    /// The first option that is given.
    fn first_option(&self) -> Option<&'static str> {
        let given = [
            ("rate", self.rate.is_some()),
            ("period", self.period.is_some()),
            ("capacity", self.capacity.is_some()),
            ("max_reserved", self.max_reserved.is_some()),
            ("start", self.start.is_some()),
            ("resolution", self.resolution.is_some()),
            ("shards", self.shards.is_some()),
        ];
        given.into_iter().find(|(_, is_given)| *is_given).map(|(option, _)| option)
    }
}

impl Serialize for Limit {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let has_options = !self.is_gate();
        Spec {
            kind: self.kind(),
            rate: has_options.then(|| self.rate()),
            period: has_options.then(|| format_micros(self.period_micros())),
            capacity: self.given_capacity().filter(|_| has_options),
            max_reserved: self.max_reserved().filter(|_| has_options),
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
        if spec.kind == Kind::Gate {
            return match spec.first_option() {
                Some(option) => Err(de::Error::custom(format!("{option} does not apply to a {}", spec.kind))),
                None => Ok(Self::gate()),
            };
        }
        let rate = spec.rate.ok_or_else(|| de::Error::missing_field("rate"))?;
        let period = spec.period.ok_or_else(|| de::Error::missing_field("period"))?;
        let period = parse_micros(&period).map_err(|reason| de::Error::custom(format!("period: {reason}")))?;
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
