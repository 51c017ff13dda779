use std::collections::BTreeMap;
use std::ops::RangeInclusive;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::error::{InvalidCall, InvalidLimit, LimitsFileError};
use crate::limit::Limit;

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
        check_name(name).map_err(|error| InvalidLimit::new(error.to_string()).of(name))?;
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
        Self::from_file(file, |value| value.try_into().map_err(|error: toml::de::Error| error.to_string()))
    }

    /// Reads a limits file in JSON: `{"limits": {"send_message": {"kind": "token_bucket", ..}}}`.
    ///
    /// # Errors
    /// [`LimitsFileError`], which names the limit and the field.
    pub fn from_json(text: &str) -> Result<Self, LimitsFileError> {
        let file: File<serde_json::Value> =
            serde_json::from_str(text).map_err(|error| LimitsFileError::new(error.to_string()))?;
        Self::from_file(file, |value| serde_json::from_value(value).map_err(|error| error.to_string()))
    }

    fn from_file<V>(file: File<V>, read: impl Fn(V) -> Result<Limit, String>) -> Result<Self, LimitsFileError> {
        let mut limits = Self::new();
        for (name, value) in file.limits {
            let limit =
                read(value).map_err(|error| LimitsFileError::new(format!("limit \"{name}\": {}", error.trim())))?;
            limits = limits.define(&name, limit).map_err(|error| LimitsFileError::new(error.to_string()))?;
        }
        Ok(limits)
    }
}

/// The limits are parsed one by one, so that an error can name the limit.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct File<V> {
    #[serde(default = "BTreeMap::new")]
    limits: BTreeMap<String, V>,
}

pub(crate) fn check_name(name: &str) -> Result<(), InvalidCall> {
    if is_storable(name, 1..=LONGEST_NAME) { Ok(()) } else { Err(InvalidCall::Name { bytes: name.len() }) }
}

/// Whether the length of a text in bytes is in this range, and PostgreSQL can store the text: it contains no NUL.
pub(crate) fn is_storable(text: &str, bytes: RangeInclusive<usize>) -> bool {
    bytes.contains(&text.len()) && !text.contains('\0')
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Found by fuzzing: numbers in JSON were wrong in their last bit.
    #[test]
    fn numbers_are_parsed_exactly() {
        for number in ["9.007199254740993e52", "0.30000000000000004", "1.2345678901234567e-30", "7.038531e-26"] {
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
