//! The JSON object on a line of an access log.

use std::fmt::{self, Formatter};
use std::iter;

use serde::de::{self, MapAccess, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer};
use serde_json::{Map, Value};

/// A JSON value in which no field of an object has two values. A server that writes a client's text without escapes lets the client
/// add fields.
pub(super) struct Unambiguous(pub(super) Value);

impl<'de> Deserialize<'de> for Unambiguous {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(Values)
    }
}

struct Values;

macro_rules! visit_scalars {
    ($($visit:ident: $scalar:ty),*) => {
        $(fn $visit<E>(self, scalar: $scalar) -> Result<Unambiguous, E> {
            Ok(Unambiguous(scalar.into()))
        })*
    };
}

impl<'de> Visitor<'de> for Values {
    type Value = Unambiguous;

    fn expecting(&self, f: &mut Formatter<'_>) -> fmt::Result {
        f.write_str("a JSON value")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut fields: A) -> Result<Unambiguous, A::Error> {
        let mut object = Map::new();
        while let Some((name, Unambiguous(value))) = fields.next_entry::<String, Unambiguous>()? {
            if object.get(&name).is_some_and(|earlier| *earlier != value) {
                return Err(de::Error::custom(format_args!("the field {name} has two values")));
            }
            object.insert(name, value);
        }
        Ok(Unambiguous(object.into()))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Unambiguous, A::Error> {
        let next = || items.next_element().map(|item| item.map(|Unambiguous(item)| item)).transpose();
        iter::from_fn(next).collect::<Result<Value, _>>().map(Unambiguous)
    }

    visit_scalars!(visit_bool: bool, visit_i64: i64, visit_u64: u64, visit_f64: f64, visit_str: &str);

    fn visit_unit<E>(self) -> Result<Unambiguous, E> {
        Ok(Unambiguous(Value::Null))
    }
}
