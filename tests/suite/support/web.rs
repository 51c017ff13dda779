//! HTTP servers on real ports, and their parsed responses.

use std::collections::BTreeMap;
use std::net::SocketAddr;

use axum::Router;
use http::HeaderMap;
use sfv::{BareItem, List, ListEntry, Parser};
use tokio::task::JoinHandle;

/// A server that runs until it is dropped.
pub struct Served {
    pub url: String,
    pub client: reqwest::Client,
    task: JoinHandle<()>,
}

impl Served {
    pub async fn start(app: Router) -> Self {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let url = format!("http://{}", listener.local_addr().expect("an address"));
        let app = app.into_make_service_with_connect_info::<SocketAddr>();
        let task = tokio::spawn(async move { axum::serve(listener, app).await.expect("served") });
        Self { url, client: reqwest::Client::new(), task }
    }

    pub async fn get(&self, path: &str, headers: &[(&str, &str)]) -> Seen {
        self.send(self.client.get(format!("{}{path}", self.url)), headers).await
    }

    pub async fn post(&self, path: &str, headers: &[(&str, &str)]) -> Seen {
        self.send(self.client.post(format!("{}{path}", self.url)), headers).await
    }

    async fn send(&self, mut request: reqwest::RequestBuilder, headers: &[(&str, &str)]) -> Seen {
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        let response = request.send().await.expect("a response");
        let (status, headers) = (response.status().as_u16(), response.headers().clone());
        Seen { status, headers, body: response.text().await.expect("a body") }
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// A response.
#[derive(Debug)]
pub struct Seen {
    pub status: u16,
    pub headers: HeaderMap,
    pub body: String,
}

/// The members of a header field: names, each with its parameters.
pub type Members = Vec<(String, BTreeMap<String, i64>)>;

impl Seen {
    pub fn header(&self, name: &str) -> Option<&str> {
        let mut values = self.headers.get_all(name).iter();
        let value = values.next().map(|value| value.to_str().expect("text"));
        assert!(values.next().is_none(), "{name} occurs more than once: {:?}", self.headers);
        value
    }

    pub fn number(&self, name: &str) -> Option<i64> {
        self.header(name).map(|text| text.parse().expect("a whole number"))
    }

    pub fn list(&self, name: &str) -> Members {
        members(&self.headers, name)
    }

    pub fn problem(&self) -> serde_json::Value {
        assert_eq!(self.header("content-type"), Some("application/problem+json"), "{self:?}");
        let problem: serde_json::Value = serde_json::from_str(&self.body).expect("JSON");
        assert_eq!(problem["status"], self.status);
        problem
    }

    /// Whether the response has none of this library's fields.
    pub fn is_untouched(&self) -> bool {
        ["ratelimit", "ratelimit-policy", "x-ratelimit-limit", "retry-after"]
            .iter()
            .all(|name| !self.headers.contains_key(*name))
    }
}

/// Parses a List of Strings with Integer parameters as a client would, with a parser for RFC 9651.
pub fn members(headers: &HeaderMap, name: &str) -> Members {
    let lines: Vec<&str> = headers.get_all(name).iter().map(|line| line.to_str().expect("text")).collect();
    let list = Parser::new(lines.join(", ").as_bytes()).parse::<List>().expect("a list");
    let member = |entry: ListEntry| {
        let ListEntry::Item(item) = entry else { panic!("{lines:?} has an inner list") };
        let BareItem::String(name) = item.bare_item else { panic!("{lines:?} has no strings") };
        let parameters = item.params.into_iter().map(|(name, value)| {
            let BareItem::Integer(value) = value else { panic!("{lines:?} has no integers") };
            (name.to_string(), i64::from(value))
        });
        (name.to_string(), parameters.collect())
    };
    list.into_iter().map(member).collect()
}
