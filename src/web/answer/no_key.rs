use http::{Response, StatusCode};

use crate::web::answer::problem::plain;
use crate::web::keys::NoKey;
use crate::web::note;

/// The response to a request without a key.
pub(in crate::web) fn no_key_response(no_key: &NoKey) -> Response<String> {
    match no_key {
        NoKey::Missing { .. } | NoKey::Unusable { .. } => {
            let detail = format!("The request has no usable key for a rate limit: {no_key}.");
            plain(StatusCode::BAD_REQUEST, Some(detail))
        }
        NoKey::Misconfigured { .. } => {
            note::misconfigured(no_key);
            plain(StatusCode::INTERNAL_SERVER_ERROR, None)
        }
    }
}
