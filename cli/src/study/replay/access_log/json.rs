//! The JSON object on a line of an access log.

use std::fmt::{self, Formatter};

use serde::de::{self, MapAccess, Visitor};
use serde::{Deserialize, Deserializer};
use serde_json::{Map, Value};

/// A JSON object in which no field has two values. A server that writes a client's text without escapes lets the client add fields.
#[derive(Default)]
pub(super) struct Unambiguous(pub(super) Map<String, Value>);

impl<'de> Deserialize<'de> for Unambiguous {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_map(Self::default())
    }
}

impl<'de> Visitor<'de> for Unambiguous {
    type Value = Self;

    fn expecting(&self, f: &mut Formatter<'_>) -> fmt::Result {
        f.write_str("a JSON object")
    }

    fn visit_map<A: MapAccess<'de>>(mut self, mut fields: A) -> Result<Self, A::Error> {
        while let Some((name, value)) = fields.next_entry::<String, Value>()? {
            if self.0.get(&name).is_some_and(|earlier| *earlier != value) {
                return Err(de::Error::custom(format_args!("the field {name} has two values")));
            }
            self.0.insert(name, value);
        }
        Ok(self)
    }
}
