//! The limits, the statement and its answer, and retries: the same for every driver.

use std::sync::LazyLock;
use std::time::Duration;

use serde::Deserialize;
use serde_json::{Value, json};

/// A limits file, as the library, the tool and the examples in other languages read it.
pub const LIMITS: &str = include_str!("../../limits.json");

/// The interval as seconds, because each driver has another type for an interval.
pub const RATE_LIMIT_ALL: &str = "SELECT ok, extract(epoch FROM retry_after)::float8 AS retry_after, denied_by, limits \
                                  FROM rate_limit.limit_all_with($1::jsonb)";

/// The answer of `limit_all_with`.
#[derive(Debug)]
pub struct Decision {
    pub ok: bool,
    /// After a denial, the seconds until the same call would be allowed.
    pub retry_after: Option<f64>,
    /// The names of the limits that denied the call.
    pub denied_by: Vec<String>,
    /// One for each element of the call.
    pub limits: Vec<LimitState>,
}

#[derive(Debug, Deserialize)]
pub struct LimitState {
    pub name: String,
    pub key: String,
    pub denied: bool,
    /// The balance that is left.
    pub value: f64,
    /// For rate_limit.release, if the element took slots of a concurrency limit.
    pub lease_id: Option<i64>,
}

/// An element of a call: a limit of the file, and a key. For an unknown name, the call fails.
pub fn item(name: &str, key: &str) -> Value {
    static FILE: LazyLock<Value> = LazyLock::new(|| serde_json::from_str(LIMITS).expect("limits.json"));
    let mut item = FILE["limits"][name].clone();
    item["name"] = name.into();
    item["key"] = key.into();
    item
}

/// The application's data.
#[derive(Clone, Copy, Debug)]
pub struct Message<'a> {
    pub author: &'a str,
    pub org: &'a str,
    pub body: &'a str,
}

impl Message<'_> {
    /// The tokens that a message takes, as the argument of `limit_all_with`.
    pub fn cost(&self) -> Value {
        json!([item("per_user", self.author), item("per_org", self.org)])
    }
}

/// Runs a whole transaction, and again after a conflict, at most ten times.
pub async fn with_retries<T, E, F: Future<Output = Result<T, E>>>(
    is_conflict: fn(&E) -> bool,
    transaction: impl Fn() -> F,
) -> Result<T, E> {
    let mut attempt = 1;
    loop {
        match transaction().await {
            Err(error) if attempt < 10 && is_conflict(&error) => {}
            result => return result,
        }
        // A random pause of up to 10 ms, then 20 ms, 40 ms, ..: so that the same transactions do not meet again.
        tokio::time::sleep(Duration::from_millis(5 << attempt).mul_f64(fastrand::f64())).await;
        attempt += 1;
    }
}
