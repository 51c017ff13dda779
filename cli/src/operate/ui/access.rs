//! Checks that a visitor may see a page.

use std::net::SocketAddr;

use axum::extract::{Request, State};
use axum::http::{HeaderMap, Method, StatusCode, Uri, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};

use crate::Result;
use crate::key_secret::{random, secret};
use crate::operate::ui::Shared;
use pg_limiter::KeySecret;

/// Nothing but this server's own files and forms; no inline script or style.
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; \
                      form-action 'self'; frame-ancestors 'none'; base-uri 'none'";
const PARAMETER: &str = "token=";

pub(super) struct Access {
    /// Hashes what is compared, so that the time of a comparison shows nothing.
    secret: KeySecret,
    token: Option<String>,
    address: SocketAddr,
    cookie: String,
    /// The value of the field `form` in each form: a page of another site cannot know it.
    pub(super) form: String,
}

pub(super) fn random_token() -> Result<String> {
    Ok(random()?.iter().map(|byte| format!("{byte:02x}")).collect())
}

impl Access {
    pub(super) fn new(address: SocketAddr, token: Option<String>) -> Result<Self> {
        let cookie = format!("pg_limiter_ui_{}", address.port());
        Ok(Self { secret: secret()?, token, address, cookie, form: random_token()? })
    }

    pub(super) fn equal(&self, given: &str, expected: &str) -> bool {
        self.secret.stored_key("", given) == self.secret.stored_key("", expected)
    }

    /// Another name for a loopback address is a page that had its name changed to it (DNS rebinding).
    fn host_is_own(&self, headers: &HeaderMap) -> bool {
        let host = headers.get(header::HOST).and_then(|host| host.to_str().ok()).unwrap_or_default();
        let host = host.to_ascii_lowercase();
        // Browsers leave out the usual port.
        let usual = Some(&*host).filter(|_| self.address.port() == 80);
        let name = host.strip_suffix(&format!(":{}", self.address.port())).or(usual);
        // Visitors of other addresses need the token.
        !self.address.ip().is_loopback()
            || host == self.address.to_string()
            || name.is_some_and(|name| ["127.0.0.1", "[::1]", "localhost"].contains(&name))
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
        let (tokens, rest): (Vec<_>, Vec<_>) = uri.query()?.split('&').partition(|pair| pair.starts_with(PARAMETER));
        if !self.equal(&tokens.last()?[PARAMETER.len()..], token) {
            return None;
        }
        let query = if rest.is_empty() { String::new() } else { format!("?{}", rest.join("&")) };
        // Not an URL of another host, as `//host` would be.
        let location = format!("/{}{query}", uri.path().trim_start_matches('/'));
        let cookie = format!("{}={token}; HttpOnly; SameSite=Strict; Path=/", self.cookie);
        Some((StatusCode::SEE_OTHER, [(header::LOCATION, location), (header::SET_COOKIE, cookie)]).into_response())
    }

    fn refusal(&self, method: &Method, uri: &Uri, headers: &HeaderMap) -> Option<Response> {
        // With the cookie, the token leaves the address bar, too.
        let entered = self.enter(uri).filter(|_| method == Method::GET);
        let (status, text) = if !self.host_is_own(headers) {
            let text = "This address is not the one that pg-limiter listens on. Use the URL that it printed.";
            (StatusCode::MISDIRECTED_REQUEST, text)
        } else if is_from_another_site(method, headers) {
            (StatusCode::FORBIDDEN, "Requests from other sites are refused.")
        } else if entered.is_some() || self.has_cookie(headers) {
            return entered;
        } else {
            (StatusCode::UNAUTHORIZED, "This page needs the token. Open the URL that pg-limiter printed, which has it.")
        };
        Some((status, text).into_response())
    }
}

/// Links on other sites may lead here. Other requests of other sites are refused: those of scripts, images, frames and forms.
fn is_from_another_site(method: &Method, headers: &HeaderMap) -> bool {
    let text = |name: &str| headers.get(name).map(|value| value.to_str().unwrap_or("invalid"));
    let reads = matches!(*method, Method::GET | Method::HEAD);
    match (text("sec-fetch-site"), text("sec-fetch-mode"), text("sec-fetch-dest")) {
        (Some("same-origin"), ..) => false,
        (Some("none"), ..) | (Some(_), Some("navigate"), None | Some("document" | "empty")) => !reads,
        (Some(_), ..) => true,
        // A browser that does not send these headers, or no browser.
        (None, ..) => {
            let host = text("host").unwrap_or_default();
            text("origin").is_some_and(|origin| origin.split_once("://").is_none_or(|(_, from)| from != host))
        }
    }
}

pub(super) async fn guard(State(app): Shared, request: Request, next: Next) -> Response {
    let response = match app.access.refusal(request.method(), request.uri(), request.headers()) {
        Some(refusal) => refusal,
        None => next.run(request).await,
    };
    let confined = [
        (header::CONTENT_SECURITY_POLICY, POLICY),
        (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
        (header::REFERRER_POLICY, "no-referrer"),
        (header::CACHE_CONTROL, "no-store"),
        (header::X_FRAME_OPTIONS, "DENY"),
        (header::HeaderName::from_static("cross-origin-opener-policy"), "same-origin"),
        (header::HeaderName::from_static("cross-origin-resource-policy"), "same-origin"),
    ];
    (confined, response).into_response()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn headers(pairs: &[(&str, &str)]) -> HeaderMap {
        let pair = |(name, value): &(&str, &str)| (name.parse::<header::HeaderName>().unwrap(), value.parse().unwrap());
        pairs.iter().map(pair).collect()
    }

    #[test]
    fn only_links_lead_here_from_other_sites() {
        let cross = |method: Method, pairs: &[(&str, &str)]| is_from_another_site(&method, &headers(pairs));
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
        let location = |uri: &str| Some(access.enter(&uri.parse().unwrap())?.headers()[header::LOCATION].clone());
        assert_eq!(location("/key?a=1&token=0123456789abcdef&b=2").unwrap(), "/key?a=1&b=2");
        assert_eq!(location("//evil.example/?token=0123456789abcdef").unwrap(), "/evil.example/");
        for uri in ["/", "/?token=", "/?token=0123456789abcdeF", "/?token=0123456789abcdef0", "/?x=0123456789abcdef"] {
            assert_eq!(location(uri), None, "{uri}");
        }
        assert!(access.has_cookie(&headers(&[("cookie", "a=b; pg_limiter_ui_80=0123456789abcdef")])));
        assert!(!access.has_cookie(&headers(&[("cookie", "pg_limiter_ui_80=0123456789abcdeF")])));
        assert!(!access.has_cookie(&headers(&[])));
    }

    #[test]
    fn a_loopback_address_has_no_other_names() {
        let access = Access::new("127.0.0.1:8420".parse().unwrap(), None).unwrap();
        for host in ["127.0.0.1:8420", "LOCALHOST:8420", "[::1]:8420"] {
            assert!(access.host_is_own(&headers(&[("host", host)])), "{host}");
        }
        for host in ["evil.example:8420", "127.0.0.1", "127.0.0.1:80", ""] {
            assert!(!access.host_is_own(&headers(&[("host", host)])), "{host}");
        }
    }
}
