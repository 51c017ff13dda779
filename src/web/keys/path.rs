use http::request::Parts;

use crate::call::Key;
use crate::web::keys::{KeyExtractor, NoKey};

/// Uses the path of the request as the key, so each requested path has its own bucket.
///
/// The path is used exactly as the client sent it. `/a`, `/a/` and `/%61` are three keys, and paths that do not exist are
/// keys, too. Within axum's `Router::nest`, the prefix of the nested router is missing. With axum, `RouteKey` is better in
/// most cases. A path of more than 1024 bytes is stored as its hash: see [`KeyExtractor`].
#[derive(Clone, Copy, Debug, Default)]
#[must_use]
pub struct PathKey;

impl KeyExtractor for PathKey {
    fn key(&self, request: &Parts) -> Result<Option<Key>, NoKey> {
        Ok(Some(request.uri.path().into()))
    }
}
