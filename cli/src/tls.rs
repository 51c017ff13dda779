//! Advice for connections that fail because of TLS.

use sqlx::Error;

/// The server rejects this kind of connection.
const INVALID_AUTHORIZATION: &str = "28000";

/// A line of advice, if encryption is what is missing or wrong. `has_tls`: whether this tool was built with it.
pub(super) fn advice(error: &Error, has_tls: bool) -> Option<&'static str> {
    if !has_tls {
        return requires_tls(error).then_some(
            "This pg-limiter was built without TLS. If the server requires it, install the tool with it: \
             cargo install pg-limiter --features cli,rustls",
        );
    }
    let text = error.to_string();
    if text.contains("UnknownIssuer") {
        return Some(
            "The server's certificate is signed by no CA that this machine trusts. Add sslrootcert=FILE to the URL, with the \
             certificate of the server's CA; managed databases publish theirs.",
        );
    }
    if text.contains("not valid for name") {
        return Some(
            "The server's certificate is for another host. Connect by a name that is in it, or check only its CA, with \
             sslmode=verify-ca in the URL.",
        );
    }
    None
}

/// Servers word it in their own ways; an sqlx without TLS says so itself.
fn requires_tls(error: &Error) -> bool {
    match error {
        Error::Tls(_) => true,
        Error::Database(error) => {
            let text = error.message().to_uppercase();
            error.code().as_deref() == Some(INVALID_AUTHORIZATION) || text.contains("SSL") || text.contains("TLS")
        }
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tool_without_tls_names_the_feature() {
        let refused = || Error::Tls("TLS upgrade required by connect options".into());
        assert!(advice(&refused(), false).is_some_and(|advice| advice.contains("--features cli,rustls")));
        assert_eq!(advice(&refused(), true), None);
        assert_eq!(advice(&Error::PoolTimedOut, false), None);
    }
}
