use http::request::Parts;

use crate::call::Key;
use crate::web::keys::{KeyExtractor, NoKey};

/// The path of the request, as it is: a bucket for each path that somebody asks for.
///
/// It is what the client wrote. `/a`, `/a/` and `/%61` are three keys, and paths that do not exist are keys, too; below
/// `Router::nest` of axum, the part before the nested router is missing. With axum, `RouteKey` is better in most cases.
#[derive(Clone, Copy, Debug, Default)]
#[must_use]
pub struct PathKey;

impl KeyExtractor for PathKey {
    fn key(&self, request: &Parts) -> Result<Option<Key>, NoKey> {
        Ok(Some(request.uri.path().into()))
    }
}
