//! Checks that a visitor may see a page.

use std::net::SocketAddr;
use std::sync::Arc;

use axum::body::Body;
use axum::extract::{Request, State};
use axum::http::header::{self, HeaderMap, HeaderValue};
use axum::http::{Method, StatusCode, Uri};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};

use crate::error::CliError;
use crate::key_secret::{random, secret};
use crate::ui::app::App;
use pg_limiter::KeySecret;

/// Nothing but this server's own files and forms; no inline script or style.
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; \
                      form-action 'self'; frame-ancestors 'none'; base-uri 'none'";
const PARAMETER: &str = "token=";

#[derive(Debug)]
pub(super) struct Access {
    /// Hashes what is compared, so that the time of a comparison shows nothing.
    secret: KeySecret,
    token: Option<String>,
    /// The hosts that a loopback address may be called, with the port. `None`: any, because visitors need the token.
    hosts: Option<Vec<String>>,
    cookie: String,
    /// The value of the field `form` in each form: a page of another site cannot know it.
    pub(super) form: String,
}

/// Text that cannot be guessed, for URLs.
pub(super) fn random_token() -> Result<String, CliError> {
    Ok(random()?.iter().map(|byte| format!("{byte:02x}")).collect())
}

impl Access {
    pub(super) fn new(address: SocketAddr, token: Option<String>) -> Result<Self, CliError> {
        let port = address.port();
        let names = || {
            let mut names = ["127.0.0.1", "[::1]", "localhost"].map(|host| format!("{host}:{port}")).to_vec();
            names.push(address.to_string());
            if port == 80 {
                names.extend(["127.0.0.1", "[::1]", "localhost"].map(str::to_owned));
            }
            names
        };
        Ok(Self {
            secret: secret()?,
            token,
            hosts: address.ip().is_loopback().then(names),
            cookie: format!("pg_limiter_ui_{port}"),
            form: random_token()?,
        })
    }

    pub(super) fn is_own_form(&self, given: &str) -> bool {
        self.equal(given, &self.form)
    }

    fn equal(&self, given: &str, expected: &str) -> bool {
        self.secret.stored_key("", given) == self.secret.stored_key("", expected)
    }

    fn host_is_own(&self, headers: &HeaderMap) -> bool {
        let host = headers.get(header::HOST).and_then(|host| host.to_str().ok()).unwrap_or_default();
        // Another name for a loopback address is a page that had its name changed to it (DNS rebinding).
        self.hosts.as_ref().is_none_or(|hosts| hosts.iter().any(|own| own.eq_ignore_ascii_case(host)))
    }

    fn has_cookie(&self, headers: &HeaderMap) -> bool {
        let Some(token) = &self.token else { return true };
        let cookies = headers.get_all(header::COOKIE).iter().filter_map(|cookies| cookies.to_str().ok());
        let mut pairs = cookies.flat_map(|cookies| cookies.split(';')).filter_map(|pair| pair.trim().split_once('='));
        pairs.any(|(name, value)| name == self.cookie && self.equal(value, token))
    }

    /// If the URL has the right token: the answer that stores it in a cookie, and leads to the URL without it.
    fn enter(&self, uri: &Uri) -> Option<Response> {
        let token = self.token.as_ref()?;
        let (mut given, mut rest) = (None, Vec::new());
        for pair in uri.query()?.split('&') {
            match pair.strip_prefix(PARAMETER) {
                Some(value) => given = Some(value),
                None => rest.push(pair),
            }
        }
        if !self.equal(given?, token) {
            return None;
        }
        let query = if rest.is_empty() { String::new() } else { format!("?{}", rest.join("&")) };
        // Not an URL of another host, as `//host` would be.
        let location = format!("/{}{query}", uri.path().trim_start_matches('/'));
        let cookie = format!("{}={token}; HttpOnly; SameSite=Strict; Path=/", self.cookie);
        let headers = [(header::LOCATION, location), (header::SET_COOKIE, cookie)];
        Some((StatusCode::SEE_OTHER, headers).into_response())
    }

    /// The answer to a request that must not reach a page.
    fn refusal(&self, method: &Method, uri: &Uri, headers: &HeaderMap) -> Option<Response> {
        if !self.host_is_own(headers) {
            let text = "This address is not the one that pg-limiter listens on. Use the URL that it printed.";
            return Some((StatusCode::MISDIRECTED_REQUEST, text).into_response());
        }
        if is_from_another_site(method, headers) {
            return Some((StatusCode::FORBIDDEN, "Requests from other sites are refused.").into_response());
        }
        if self.has_cookie(headers) {
            // With the cookie, the token leaves the address bar, too.
            return if method == Method::GET { self.enter(uri) } else { None };
        }
        let wrong = || {
            let text = "This page needs the token. Open the URL that pg-limiter printed, which has it.";
            (StatusCode::UNAUTHORIZED, text).into_response()
        };
        Some(if method == Method::GET { self.enter(uri).unwrap_or_else(wrong) } else { wrong() })
    }
}

/// Links on other sites may lead here. Other requests of other sites are refused: those of scripts, images, frames and forms.
fn is_from_another_site(method: &Method, headers: &HeaderMap) -> bool {
    let text = |name: &str| headers.get(name).map(|value| value.to_str().unwrap_or("invalid"));
    let reads = matches!(*method, Method::GET | Method::HEAD);
    match (text("sec-fetch-site"), text("sec-fetch-mode"), text("sec-fetch-dest")) {
        (Some("same-origin"), ..) => false,
        (Some("none"), ..) => !reads,
        (Some(_), Some("navigate"), None | Some("document" | "empty")) => !reads,
        (Some(_), ..) => true,
        // A browser that does not send these headers, or no browser.
        (None, ..) => {
            let host = text("host").unwrap_or_default();
            text("origin").is_some_and(|origin| origin.split_once("://").is_none_or(|(_, from)| from != host))
        }
    }
}

pub(super) async fn guard(State(app): State<Arc<App>>, request: Request<Body>, next: Next) -> Response {
    let refusal = app.access.refusal(request.method(), request.uri(), request.headers());
    let mut response = match refusal {
        Some(refusal) => refusal,
        None => next.run(request).await,
    };
    let headers = response.headers_mut();
    let fixed = [
        (header::CONTENT_SECURITY_POLICY, POLICY),
        (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
        (header::REFERRER_POLICY, "no-referrer"),
        (header::CACHE_CONTROL, "no-store"),
        (header::X_FRAME_OPTIONS, "DENY"),
        (header::HeaderName::from_static("cross-origin-opener-policy"), "same-origin"),
        (header::HeaderName::from_static("cross-origin-resource-policy"), "same-origin"),
    ];
    for (name, value) in fixed {
        headers.insert(name, HeaderValue::from_static(value));
    }
    response
}

#[cfg(test)]
mod tests {
    use super::*;

    fn headers(pairs: &[(&'static str, &'static str)]) -> HeaderMap {
        let pair = |(name, value): &(&'static str, &'static str)| {
            (header::HeaderName::from_static(name), HeaderValue::from_static(value))
        };
        pairs.iter().map(pair).collect()
    }

    #[test]
    fn only_links_lead_here_from_other_sites() {
        let cross =
            |method: Method, pairs: &[(&'static str, &'static str)]| is_from_another_site(&method, &headers(pairs));
        let site = |site| ("sec-fetch-site", site);
        let navigate = ("sec-fetch-mode", "navigate");
        assert!(!cross(Method::POST, &[site("same-origin"), navigate, ("origin", "null")]));
        assert!(!cross(Method::GET, &[site("none"), navigate]));
        assert!(!cross(Method::GET, &[site("cross-site"), navigate, ("sec-fetch-dest", "document")]));
        assert!(cross(Method::GET, &[site("cross-site"), navigate, ("sec-fetch-dest", "iframe")]));
        assert!(cross(Method::GET, &[site("cross-site"), ("sec-fetch-mode", "no-cors")]));
        assert!(cross(Method::POST, &[site("cross-site"), navigate, ("sec-fetch-dest", "document")]));
        assert!(cross(Method::POST, &[site("same-site"), navigate]));
        // Without these headers, the origin decides.
        assert!(!cross(Method::POST, &[("host", "127.0.0.1:1")]));
        assert!(!cross(Method::POST, &[("host", "127.0.0.1:1"), ("origin", "http://127.0.0.1:1")]));
        assert!(cross(Method::POST, &[("host", "127.0.0.1:1"), ("origin", "http://127.0.0.1:2")]));
        assert!(cross(Method::POST, &[("host", "127.0.0.1:1"), ("origin", "null")]));
    }

    #[test]
    fn a_token_in_the_url_becomes_a_cookie() {
        let token = "0123456789abcdef";
        let access = Access::new("192.0.2.1:80".parse().unwrap(), Some(token.to_owned())).unwrap();
        let entered = |uri: &str| access.enter(&uri.parse().unwrap());
        let location =
            |uri: &str| entered(uri).map(|response| response.headers()[header::LOCATION].to_str().unwrap().to_owned());
        assert_eq!(location("/key?a=1&token=0123456789abcdef&b=2").as_deref(), Some("/key?a=1&b=2"));
        assert_eq!(location("//evil.example/?token=0123456789abcdef").as_deref(), Some("/evil.example/"));
        for uri in ["/", "/?token=", "/?token=0123456789abcdeF", "/?token=0123456789abcdef0", "/?x=0123456789abcdef"] {
            assert!(entered(uri).is_none(), "{uri}");
        }
        assert!(access.has_cookie(&headers(&[("cookie", "a=b; pg_limiter_ui_80=0123456789abcdef")])));
        assert!(!access.has_cookie(&headers(&[("cookie", "pg_limiter_ui_80=0123456789abcdeF")])));
        assert!(!access.has_cookie(&headers(&[])));
    }

    #[test]
    fn a_loopback_address_has_no_other_names() {
        let access = Access::new("127.0.0.1:8420".parse().unwrap(), None).unwrap();
        for (host, is_own) in [("127.0.0.1:8420", true), ("LOCALHOST:8420", true), ("[::1]:8420", true)]
            .into_iter()
            .chain([("evil.example:8420", false), ("127.0.0.1", false), ("127.0.0.1:80", false), ("", false)])
        {
            assert_eq!(access.host_is_own(&headers(&[("host", host)])), is_own, "{host}");
        }
    }
}
