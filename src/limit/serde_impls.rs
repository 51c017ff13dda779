//! Serializes a limit with the fields of a limits file.

use serde::{Deserialize, Deserializer, Serialize, Serializer, de};

use crate::limit::calendar::{Given, Windows};
use crate::limit::limit::Options;
use crate::limit::{Kind, Limit, format_micros, parse_micros};

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Spec {
    kind: Kind,
    rate: f64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    period: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    every: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    zone: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    anchor: Option<String>,
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
            period: self.windows().is_none().then(|| format_micros(self.period_micros())),
            every: self.every().map(|every| every.to_string()),
            zone: self.windows().and_then(Windows::given_zone).map(str::to_owned),
            anchor: self.windows().and_then(Windows::given_anchor).map(str::to_owned),
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
        let (period, every) = match (spec.kind.has_option("every"), spec.period, spec.every) {
            (true, None, Some(every)) => (0, Some(every.parse().map_err(de::Error::custom)?)),
            (true, None, None) => return Err(de::Error::missing_field("every")),
            (false, Some(period), None) => {
                (parse_micros(&period).map_err(|reason| de::Error::custom(format!("period: {reason}")))?, None)
            }
            (false, None, None) => return Err(de::Error::missing_field("period")),
            (is_calendar, ..) => {
                let [misplaced, instead] = if is_calendar { ["period", "every"] } else { ["every", "period"] };
                let kind = spec.kind;
                return Err(de::Error::custom(format!("{misplaced} does not apply to a {kind}; use {instead}")));
            }
        };
        let start = spec.start.as_deref().map(parse_micros).transpose();
        let start = start.map_err(|reason| de::Error::custom(format!("start: {reason}")))?;
        Options {
            capacity: spec.capacity,
            max_reserved: spec.max_reserved,
            start: start.map(Ok),
            resolution: spec.resolution,
            shards: spec.shards,
            every,
            zone: spec.zone.as_deref().map(Given::cut),
            anchor: spec.anchor.as_deref().map(Given::cut),
            ..Options::new(spec.kind, spec.rate, Ok(period))
        }
        .check()
        .map_err(de::Error::custom)
    }
}
