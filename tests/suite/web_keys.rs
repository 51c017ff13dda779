//! The key of a request: from headers, paths and closures, and what happens if it is missing.

use std::time::Duration;

use http::request::Parts;
use http::{HeaderName, HeaderValue, Request};
use pg_limiter::web::{HeaderKey, KeyExtractor, NoKey, PathKey, RateLimitLayer, key_fn};
use pg_limiter::{Error, InvalidCall, Key, Limit, Limits};

use crate::support::Database;

fn request(path: &str, headers: &[(&str, &[u8])]) -> Parts {
    let mut request = Request::builder().uri(path).body(()).expect("a request");
    for (name, value) in headers {
        let name: HeaderName = name.parse().expect("a name");
        request.headers_mut().append(name, HeaderValue::from_bytes(value).expect("a value"));
    }
    request.into_parts().0
}

fn by_org() -> HeaderKey {
    HeaderKey::new("X-Org").expect("a name")
}

fn found(key: &str) -> Result<Option<Key>, NoKey> {
    Ok(Some(key.into()))
}

#[test]
fn a_header_value_is_the_key() {
    for (value, expected) in [("o7", "o7"), (" O 7\t", "O 7"), ("z\u{fc}rich", "z\u{fc}rich"), ("a, b", "a, b")] {
        assert_eq!(by_org().key(&request("/", &[("x-org", value.as_bytes())])), found(expected), "{value}");
    }
    assert!(HeaderKey::new("x org").is_err() && HeaderKey::new("").is_err());
}

/// A client that sends the header twice could be limited by one value and served by the other.
#[test]
fn a_header_that_is_missing_empty_repeated_or_not_text_is_no_key() {
    let missing = NoKey::Missing { what: "the header x-org".into() };
    assert_eq!(by_org().key(&request("/", &[("x-other", b"o7")])), Err(missing.clone()));
    assert_eq!(by_org().key(&request("/", &[("x-org", b"")])), Err(missing.clone()));
    assert_eq!(by_org().key(&request("/", &[("x-org", b" \t ")])), Err(missing));
    for lines in [&[("x-org", &b"o7"[..]), ("x-org", b"o8")][..], &[("x-org", b"\xff\xfe")]] {
        for extractor in [
            Box::new(by_org()) as Box<dyn KeyExtractor>,
            Box::new(by_org().or_shared()),
            Box::new(by_org().or_unlimited()),
            Box::new(by_org().or(PathKey)),
        ] {
            let error = extractor.key(&request("/", lines)).expect_err("no key");
            assert!(matches!(error, NoKey::Unusable { .. }), "{error:?}");
            assert!(!error.to_string().contains("o7"), "{error}");
        }
    }
}

#[test]
fn an_extractor_defines_what_happens_without_a_key() {
    let (with, without) = (request("/a", &[("x-org", b"o7")]), request("/a", &[]));
    assert_eq!(by_org().or_shared().key(&with), found("o7"));
    assert_eq!(by_org().or_shared().key(&without), found(""));
    assert_eq!(by_org().or_unlimited().key(&with), found("o7"));
    assert_eq!(by_org().or_unlimited().key(&without), Ok(None));
    assert_eq!(by_org().or(PathKey).key(&with), found("1:o7"));
    assert_eq!(by_org().or(PathKey).key(&without), found("2:/a"));
    let three = HeaderKey::new("x-user").expect("a name").or(by_org()).or(PathKey);
    assert_eq!((three.key(&with), three.key(&without)), (found("1:2:o7"), found("2:/a")));
}

/// A client that sends another client's path or address as a header spends its own tokens.
#[test]
fn alternative_keys_never_collide() {
    let either = by_org().or(PathKey);
    for pretended in ["/a", "2:/a", "1:/a", ":/a"] {
        assert_ne!(either.key(&request("/b", &[("x-org", pretended.as_bytes())])), either.key(&request("/a", &[])));
    }
}

#[test]
fn a_closure_can_use_request_extensions() {
    #[derive(Clone)]
    struct Account(u64);
    let by_account = key_fn(|request| Some(request.extensions.get::<Account>()?.0.to_string()));
    let mut parts = request("/", &[]);
    assert!(matches!(by_account.key(&parts), Err(NoKey::Missing { .. })));
    assert_eq!(by_account.or_shared().key(&parts), found(""));
    parts.extensions.insert(Account(7));
    assert_eq!(by_account.key(&parts), found("7"));
    assert_eq!(key_fn(|_| Some("all")).key(&parts), found("all"));
}

#[test]
fn a_path_is_a_key_without_its_query() {
    assert_eq!(PathKey.key(&request("/a/b?c=d", &[])), found("/a/b"));
    assert_eq!(PathKey.key(&request("/", &[])), found("/"));
}

#[tokio::test]
async fn an_unknown_limit_is_an_error_when_the_layer_is_created() {
    let database = Database::empty().await;
    let limits = Limits::new().define("known", Limit::token_bucket(1, Duration::from_secs(1))).expect("a limit");
    let layer = RateLimitLayer::new(database.limiter(limits));
    let inline = Limit::token_bucket(1, Duration::from_secs(1)).build().expect("a limit");
    let layer =
        layer.limit("known", PathKey).expect("it is known").limit(("given", inline), PathKey).expect("it is given");
    let error = layer.limit("knwon", PathKey).expect_err("there is none");
    let Error::Invalid(InvalidCall::UnknownLimit { limit }) = &error else { panic!("{error:?}") };
    assert_eq!(limit, "knwon");
}
