use http::HeaderName;
use http::header::InvalidHeaderName;
use http::request::Parts;

use crate::call::Key;
use crate::web::keys::{KeyExtractor, NoKey};

/// The value of a header, as it is: an API key's id, an organisation, a tenant.
///
/// A header that is empty counts as missing. One that is there more than once is refused with 400, because the handler
/// might go by another one of them; so is one that is not UTF-8.
///
/// A client may send what it likes: let somebody check the value before (an authenticating proxy or layer), or every
/// request can have a fresh key. An API key itself is a secret: use a [`KeySecret`](crate::KeySecret), or better its id.
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
    /// The header of this name.
    ///
    /// # Errors
    /// [`InvalidHeaderName`] if there can be no such header.
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
            return Err(NoKey::Unusable { what: self.what().into(), reason: "is there more than once".into() });
        }
        match std::str::from_utf8(value.as_bytes().trim_ascii()) {
            Ok("") => Err(missing()),
            Ok(key) => Ok(Some(key.into())),
            Err(_) => Err(NoKey::Unusable { what: self.what().into(), reason: "is not UTF-8".into() }),
        }
    }
}
