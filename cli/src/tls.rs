//! Advice for connections that fail because of TLS.

use sqlx::Error;

/// SQLSTATE with which the server rejects this kind of connection.
const INVALID_AUTHORIZATION: &str = "28000";

/// Returns a line of advice if encryption is missing or misconfigured. `has_tls`: whether this tool was built with TLS.
pub(super) fn advice(error: &Error, has_tls: bool) -> Option<&'static str> {
    if !has_tls {
        return requires_tls(error).then_some(
            "This pg-limiter was built without TLS. If the server requires it, install the tool with it: \
             cargo install pg-limiter-cli --features rustls",
        );
    }
    let text = error.to_string();
    if text.contains("UnknownIssuer") {
        return Some(
            "This machine does not trust the CA that signed the server's certificate. Add sslrootcert=FILE to the URL, with \
             the certificate of that CA; providers of managed databases publish it.",
        );
    }
    if text.contains("not valid for name") {
        return Some(
            "The server's certificate is for another host. Connect with a name that the certificate contains, or check only \
             its CA, with sslmode=verify-ca in the URL.",
        );
    }
    None
}

/// Servers word this error differently; sqlx without TLS returns [`Error::Tls`].
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
        assert!(advice(&refused(), false).is_some_and(|advice| advice.contains("--features rustls")));
        assert_eq!(advice(&refused(), true), None);
        assert_eq!(advice(&Error::PoolTimedOut, false), None);
    }
}
