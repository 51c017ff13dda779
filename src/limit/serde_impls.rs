//! Serializes a limit with the fields of a limits file.

use std::fmt;
use std::marker::PhantomData;

use serde::de::value::MapAccessDeserializer;
use serde::de::{MapAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize, Serializer, de};

use crate::limit::calendar::{Calendar, Given, Windows};
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
    #[serde(default, skip_serializing_if = "Option::is_none")]
    lease: Option<String>,
}

/// How much a limit grants: its rate, its period in microseconds, and the calendar of its windows.
type Amount = (f64, i64, Option<Calendar>);

impl Spec {
    fn amount<E: de::Error>(&mut self) -> Result<Amount, E> {
        let length =
            |name: &str, text: &str| parse_micros(text).map_err(|reason| E::custom(format!("{name}: {reason}")));
        if self.kind == Kind::Concurrency {
            let slots = self.capacity.take().ok_or_else(|| E::missing_field("capacity"))?;
            let lease = self.lease.as_deref().map(|lease| length("lease", lease)).transpose()?;
            return Ok((slots, lease.unwrap_or(DEFAULT_LEASE.as_micros() as i64), None));
        }
        let rate = self.rate.ok_or_else(|| E::missing_field("rate"))?;
        if self.kind == Kind::CalendarWindow {
            let every = self.every.as_deref().ok_or_else(|| E::missing_field("every"))?;
            return Ok((rate, 0, Some(every.parse().map_err(E::custom)?)));
        }
        let period = self.period.as_deref().ok_or_else(|| E::missing_field("period"))?;
        Ok((rate, length("period", period)?, None))
    }

    /// Refuses the fields that say how much a limit of another kind grants, and every field of a gate.
    fn refuse_other_kinds<E: de::Error>(&self) -> Result<(), E> {
        let length = if self.kind == Kind::Concurrency { "lease" } else { "every" };
        let amounts = [
            ("rate", self.rate.is_some(), "capacity"),
            ("period", self.period.is_some(), length),
            ("every", self.every.is_some(), "period"),
            ("lease", self.lease.is_some(), "period"),
        ];
        // Other kinds check these with their values.
        let of_gate = [
            ("zone", self.zone.is_some(), ""),
            ("anchor", self.anchor.is_some(), ""),
            ("capacity", self.capacity.is_some(), ""),
            ("max_reserved", self.max_reserved.is_some(), ""),
            ("start", self.start.is_some(), ""),
            ("resolution", self.resolution.is_some(), ""),
            ("shards", self.shards.is_some(), ""),
        ];
        let others = of_gate.into_iter().filter(|_| self.kind == Kind::Gate);
        for (field, is_given, instead) in amounts.into_iter().chain(others) {
            if is_given && !self.kind.has_option(field) {
                let instead = if self.kind.has_option(instead) { format!("; use {instead}") } else { String::new() };
                return Err(E::custom(format!("{field} does not apply to a {}{instead}", self.kind)));
            }
        }
        Ok(())
    }
}

impl Serialize for Limit {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let kind = self.kind();
        let length = |field: &str| kind.has_option(field).then(|| format_micros(self.period_micros()));
        let capacity = if kind == Kind::Concurrency { Some(self.rate()) } else { self.given_capacity() };
        Spec {
            kind,
            rate: kind.has_option("rate").then_some(self.rate()),
            period: length("period"),
            every: self.every().map(|every| every.to_string()),
            zone: self.windows().and_then(Windows::given_zone).map(str::to_owned),
            anchor: self.windows().and_then(Windows::given_anchor).map(str::to_owned),
            capacity: capacity.filter(|_| kind.has_option("capacity")),
            max_reserved: self.max_reserved().filter(|_| kind.has_option("max_reserved")),
            start: self.start_micros().map(format_micros),
            resolution: self.given_resolution(),
            shards: self.given_shards(),
            lease: length("lease"),
        }
        .serialize(serializer)
    }
}

/// Reads a struct from fields with names. serde also accepts an array of values for it, so that `[]` would be a limits file.
pub(super) fn by_field<'de, T: Deserialize<'de>, D: Deserializer<'de>>(deserializer: D) -> Result<T, D::Error> {
    struct Fields<T>(PhantomData<T>);

    impl<'de, T: Deserialize<'de>> Visitor<'de> for Fields<T> {
        type Value = T;

        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("fields with names")
        }

        fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<T, A::Error> {
            T::deserialize(MapAccessDeserializer::new(map))
        }
    }

    deserializer.deserialize_map(Fields(PhantomData))
}

impl<'de> Deserialize<'de> for Limit {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let mut spec: Spec = by_field(deserializer)?;
        spec.refuse_other_kinds()?;
        if spec.kind == Kind::Gate {
            return Ok(Self::gate());
        }
        let (rate, period, every) = spec.amount()?;
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
            ..Options::new(spec.kind, rate, Ok(period))
        }
        .check()
        .map_err(de::Error::custom)
    }
}
