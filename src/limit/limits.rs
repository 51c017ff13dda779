use std::collections::BTreeMap;
use std::fmt;
use std::marker::PhantomData;
use std::ops::RangeInclusive;
use std::sync::Arc;

use serde::de::{self, MapAccess, Visitor};
use serde::{Deserialize, Deserializer};

use crate::limit::serde_impls::by_field;
use crate::limit::{InvalidLimit, Limit, LimitsFileError, refused_name};

/// The longest name of a limit or a queue, in bytes.
pub(crate) const LONGEST_NAME: usize = 255;

/// Limits by name, defined in code or loaded from a limits file. Cheap to clone.
///
/// ```
/// # use std::time::Duration;
/// use pg_limiter::{Limit, Limits};
/// let limits = Limits::new()
///     .define("send_message", Limit::token_bucket(10, Duration::from_secs(60)).capacity(20))?
///     .define("sign_up", Limit::fixed_window(100, Duration::from_secs(3600)))?;
/// assert_eq!(limits.get("sign_up").map(|limit| limit.rate()), Some(100.0));
/// # Ok::<(), pg_limiter::InvalidLimit>(())
/// ```
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Limits {
    by_name: Arc<BTreeMap<Arc<str>, Limit>>,
}

impl Limits {
    /// Creates an empty set of limits.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a limit, or replaces the limit with this name.
    ///
    /// # Errors
    /// [`InvalidLimit`] if the name is empty, longer than 255 bytes or contains a NUL, or a number is out of range.
    pub fn define<L>(mut self, name: &str, limit: L) -> Result<Self, InvalidLimit>
    where
        L: TryInto<Limit>,
        InvalidLimit: From<L::Error>,
    {
        if !is_storable(name, 1..=LONGEST_NAME) {
            return Err(InvalidLimit::new(refused_name(name.len())).of(name));
        }
        let limit = limit.try_into().map_err(|error| InvalidLimit::from(error).of(name))?;
        Arc::make_mut(&mut self.by_name).insert(name.into(), limit);
        Ok(self)
    }

    /// Returns the limit with this name.
    pub fn get(&self, name: &str) -> Option<&Limit> {
        self.by_name.get(name)
    }

    /// Iterates over all limits, sorted by name.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &Limit)> {
        self.by_name.iter().map(|(name, limit)| (&**name, limit))
    }

    pub(crate) fn find(&self, name: &str) -> Option<(&Arc<str>, &Limit)> {
        self.by_name.get_key_value(name)
    }

    /// Reads a limits file in TOML:
    ///
    /// ```
    /// let limits = pg_limiter::Limits::from_toml(r#"
    ///     [limits.send_message]
    ///     kind = "token_bucket"   # "fixed_window", "sliding_window"; others have other fields: see the guide
    ///     rate = 10
    ///     period = "1m"           # also "1500ms", "7d", "1h 30m"
    ///     capacity = 20           # optional; also max_reserved, start = "7h", resolution, shards
    /// "#)?;
    /// # Ok::<(), pg_limiter::LimitsFileError>(())
    /// ```
    ///
    /// # Errors
    /// [`LimitsFileError`], which names the limit and the field.
    #[cfg(feature = "toml")]
    #[cfg_attr(docsrs, doc(cfg(feature = "toml")))]
    pub fn from_toml(text: &str) -> Result<Self, LimitsFileError> {
        let file: File<toml::Value> = toml::from_str(text).map_err(|error| LimitsFileError::new(error.to_string()))?;
        // The limits are parsed one by one, so that an error can name the limit.
        Self::from_file(file, |name, value| {
            let read: Result<Limit, toml::de::Error> = value.try_into();
            read.map_err(|error| LimitsFileError::new(format!("limit \"{name}\": {}", error.to_string().trim())))
        })
    }

    /// Reads a limits file in JSON: `{"limits": {"send_message": {"kind": "token_bucket", ..}}}`.
    ///
    /// # Errors
    /// [`LimitsFileError`], which names the limit and the field. A limit or a field that is given twice is an error, as in
    /// TOML.
    pub fn from_json(text: &str) -> Result<Self, LimitsFileError> {
        let mut json = serde_json::Deserializer::from_str(text);
        let read = by_field(&mut json).and_then(|file: File<Limit>| json.end().map(|()| file));
        let file = read.map_err(|error| LimitsFileError::new(error.to_string()))?;
        Self::from_file(file, |_, limit| Ok(limit))
    }

    fn from_file<V>(
        file: File<V>,
        read: impl Fn(&str, V) -> Result<Limit, LimitsFileError>,
    ) -> Result<Self, LimitsFileError> {
        let mut limits = Self::new();
        for (name, value) in file.limits.0 {
            let limit = read(&name, value)?;
            limits = limits.define(&name, limit).map_err(|error| LimitsFileError::new(error.to_string()))?;
        }
        Ok(limits)
    }
}

#[derive(Deserialize)]
#[serde(bound = "V: Deserialize<'de>", deny_unknown_fields)]
struct File<V> {
    #[serde(default)]
    limits: ByName<V>,
}

/// Values by name. A name that is given twice is an error, and an error in a value names it.
struct ByName<V>(BTreeMap<String, V>);

impl<V> Default for ByName<V> {
    fn default() -> Self {
        Self(BTreeMap::new())
    }
}

impl<'de, V: Deserialize<'de>> Deserialize<'de> for ByName<V> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_map(ByNameVisitor(PhantomData))
    }
}

struct ByNameVisitor<V>(PhantomData<V>);

impl<'de, V: Deserialize<'de>> Visitor<'de> for ByNameVisitor<V> {
    type Value = ByName<V>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("limits by name")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<ByName<V>, A::Error> {
        let mut by_name = BTreeMap::new();
        while let Some(name) = map.next_key::<String>()? {
            if by_name.contains_key(&name) {
                return Err(de::Error::custom(format_args!("limit \"{name}\" is defined twice")));
            }
            let value = map.next_value();
            let value = value.map_err(|error| de::Error::custom(format_args!("limit \"{name}\": {error}")))?;
            by_name.insert(name, value);
        }
        Ok(ByName(by_name))
    }
}

/// Whether the length of a text in bytes is in this range, and PostgreSQL can store the text: it contains no NUL.
pub(crate) fn is_storable(text: &str, bytes: RangeInclusive<usize>) -> bool {
    bytes.contains(&text.len()) && !text.contains('\0')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_given_twice_is_an_error() {
        let a = r#""a": {"kind": "token_bucket", "rate": 1, "period": "1s"}"#;
        for (json, words) in [
            (format!(r#"{{"limits": {{{a}, {a}}}}}"#), "limit \"a\" is defined twice"),
            (
                format!(r#"{{"limits": {{{a}, {}}}}}"#, a.replace(r#""a""#, r#""\u0061""#)),
                "limit \"a\" is defined twice",
            ),
            (format!(r#"{{"limits": {{{a}}}, "limits": {{}}}}"#), "duplicate field `limits`"),
            (
                format!(r#"{{"limits": {{{}}}}}"#, a.replace('}', r#", "rate": 1}"#)),
                "limit \"a\": duplicate field `rate`",
            ),
            (
                format!(r#"{{"limits": {{{}}}}}"#, a.replace('}', r#", "p\u0065riod": "2s"}"#)),
                "limit \"a\": duplicate field `period`",
            ),
            (
                format!(r#"{{"limits": {{{}}}}}"#, a.replace('}', r#", "capacity": null, "capacity": 9}"#)),
                "limit \"a\": duplicate field `capacity`",
            ),
            (
                r#"{"limits": {"a": {"kind": "gate", "kind": "gate"}}}"#.to_owned(),
                "limit \"a\": duplicate field `kind`",
            ),
        ] {
            let error = Limits::from_json(&json).expect_err(&json).to_string();
            assert!(error.contains(words) && error.contains("at line 1 column"), "{json}: {error}");
        }
        assert!(serde_json::from_str::<Limit>(r#"{"kind": "gate", "kind": "gate"}"#).is_err());
    }

    #[test]
    fn errors_in_json_name_the_limit_and_the_place() {
        let json = "{\"limits\": {\n\"a\": {\"kind\": \"token_bucket\", \"rate\": 1, \"perriod\": \"1s\"}}}";
        let error = Limits::from_json(json).expect_err("no such field").to_string();
        assert!(error.starts_with("limits file: limit \"a\": unknown field `perriod`"), "{error}");
        assert!(error.ends_with("at line 2 column 50"), "{error}");
    }

    #[test]
    fn fields_without_names_are_refused() {
        let by_place = r#"{"limits": {"a": ["token_bucket", 10, "1s"]}}"#;
        for json in ["[]", "[{}]", by_place, r#"{"limits": [{"kind": "gate"}]}"#, "{} {}"] {
            let error = Limits::from_json(json).expect_err(json).to_string();
            assert!(error.contains("invalid type: sequence, expected") || json == "{} {}", "{json}: {error}");
        }
        assert_eq!(Limits::from_json("{}"), Ok(Limits::new()));
    }

    /// Found by fuzzing: numbers in JSON were wrong in their last bit.
    #[test]
    fn numbers_are_parsed_exactly() {
        for number in ["9007199254740.993", "0.30000000000000004", "1.2345678901234567e-5", "7.038531e-6"] {
            let json =
                format!(r#"{{"limits": {{"a": {{"kind": "token_bucket", "rate": {number}, "period": "1s"}}}}}}"#);
            let limits = Limits::from_json(&json).unwrap();
            assert_eq!(limits.get("a").map(Limit::rate), number.parse().ok());
            #[cfg(feature = "toml")]
            {
                let toml = format!("[limits.a]\nkind = \"token_bucket\"\nrate = {number}\nperiod = \"1s\"");
                assert_eq!(Limits::from_toml(&toml), Ok(limits));
            }
        }
    }
}
