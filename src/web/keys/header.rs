use http::HeaderName;
use http::header::InvalidHeaderName;
use http::request::Parts;

use crate::call::{Key, LONGEST_KEY};
use crate::web::keys::{KeyExtractor, NoKey};

/// Uses the value of a header as the key, without surrounding whitespace: the id of an API key, an organisation or a tenant.
///
/// An empty header counts as missing. A request that has the header more than once is rejected with 400, because the handler
/// might use another one of its values. So is a value that is not UTF-8, or has more than 1024 bytes.
///
/// Use no gRPC metadata whose name ends in `-bin`: its values are base64, and one value has several forms, which would be
/// different keys.
///
/// Clients can send any value, and so use a new key for each request. Check the value before this layer, in an
/// authenticating proxy or layer. An API key itself is a secret: use its id instead, or hash the keys with a
/// [`KeySecret`](crate::KeySecret).
///
/// ```
/// use pg_limiter::web::{HeaderKey, KeyExtractor};
/// let by_org = HeaderKey::new("x-org")?;
/// let by_org_if_any = HeaderKey::new("x-org")?.or_unlimited();
/// # Ok::<(), http::header::InvalidHeaderName>(())
/// ```
#[derive(Clone, Debug)]
#[must_use]
pub struct HeaderKey {
    name: HeaderName,
}

impl HeaderKey {
    /// Creates an extractor for the header of this name.
    ///
    /// # Errors
    /// [`InvalidHeaderName`] if this is not a valid header name.
    pub fn new(name: &str) -> Result<Self, InvalidHeaderName> {
        Ok(Self { name: HeaderName::from_bytes(name.as_bytes())? })
    }

    fn what(&self) -> String {
        format!("the header {}", self.name)
    }
}

impl From<HeaderName> for HeaderKey {
    fn from(name: HeaderName) -> Self {
        Self { name }
    }
}

impl KeyExtractor for HeaderKey {
    fn key(&self, request: &Parts) -> Result<Option<Key>, NoKey> {
        let mut values = request.headers.get_all(&self.name).iter();
        let missing = || NoKey::Missing { what: self.what().into() };
        let value = values.next().ok_or_else(missing)?;
        if values.next().is_some() {
            return Err(NoKey::Unusable { what: self.what().into(), reason: "appears more than once".into() });
        }
        match std::str::from_utf8(value.as_bytes().trim_ascii()) {
            Ok("") => Err(missing()),
            // An id is shorter. A path may be longer, and is hashed then: see `storable`.
            Ok(key) if key.len() > LONGEST_KEY => {
                Err(NoKey::Unusable { what: self.what().into(), reason: "is longer than 1024 bytes".into() })
            }
            Ok(key) => Ok(Some(key.into())),
            Err(_) => Err(NoKey::Unusable { what: self.what().into(), reason: "is not UTF-8".into() }),
        }
    }
}
