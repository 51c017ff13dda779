//! Corrections after the response: of the tokens that a request took to those that it used.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use http::request::Parts;
use http::{Extensions, HeaderMap, StatusCode, response};
use tokio::sync::watch;

use crate::call::Item;
use crate::limit::{Kind, Tokens};
use crate::web::layer::Rules;
use crate::web::layer::trial::Trial;
use crate::web::log;

pub(super) type Used = Arc<dyn Fn(&Parts, &SentResponse) -> Option<Tokens> + Send + Sync>;

/// How many tokens a request used, of one limit or of all without their own.
#[derive(Clone)]
pub(super) struct Settle {
    pub(super) limit: Option<Arc<str>>,
    pub(super) used: Used,
}

/// A response with an ended body, for the closures of [`settle`](crate::web::RateLimitLayer::settle).
#[derive(Debug)]
pub struct SentResponse {
    parts: response::Parts,
    pub(super) trailers: Option<HeaderMap>,
    pub(super) body_bytes: u64,
    pub(super) is_complete: bool,
}

impl SentResponse {
    pub(super) const fn new(parts: response::Parts) -> Self {
        Self { parts, trailers: None, body_bytes: 0, is_complete: false }
    }

    /// Returns the status.
    pub const fn status(&self) -> StatusCode {
        self.parts.status
    }

    /// Returns the header fields.
    pub const fn headers(&self) -> &HeaderMap {
        &self.parts.headers
    }

    /// Returns the extensions. A handler that learns the usage while it streams the body inserts a shared cell here, such as an
    /// `Arc<OnceLock<u64>>`, and sets it when it knows the usage.
    pub const fn extensions(&self) -> &Extensions {
        &self.parts.extensions
    }

    /// Returns the trailers, if the body ended with some.
    pub const fn trailers(&self) -> Option<&HeaderMap> {
        self.trailers.as_ref()
    }

    /// Returns the status of a gRPC response: from its trailers, or from its headers if it had no body. `None` if it was not gRPC,
    /// or the client went away before the trailers. (In a body of gRPC-Web, trailers are part of the data: put
    /// `tonic_web::GrpcWebLayer` outside of this layer.)
    ///
    /// Only failed log-ins count here:
    ///
    /// ```
    /// use pg_limiter::web::{HeaderKey, RateLimitLayer};
    /// use tonic::Code;
    ///
    /// # fn f(limiter: pg_limiter::Limiter) -> Result<(), Box<dyn std::error::Error>> {
    /// let layer = RateLimitLayer::new(limiter)
    ///     .limit("failed_log_ins", HeaderKey::new("x-account")?)?
    ///     .settle(|_, response| response.grpc_code().map(|code| if code == Code::Unauthenticated { 1 } else { 0 }));
    /// # Ok(()) }
    /// ```
    ///
    /// Without a status, the closure returns `None`, and the token stays charged.
    #[cfg(feature = "tonic")]
    #[cfg_attr(docsrs, doc(cfg(feature = "tonic")))]
    pub fn grpc_code(&self) -> Option<tonic::Code> {
        let code_in =
            |fields: &HeaderMap| fields.get("grpc-status").map(|code| tonic::Code::from_bytes(code.as_bytes()));
        self.trailers.as_ref().and_then(code_in).or_else(|| code_in(&self.parts.headers))
    }

    /// Returns the length of the body that was sent, in bytes. An outer layer may still compress it.
    pub const fn body_bytes(&self) -> u64 {
        self.body_bytes
    }

    /// Returns whether the server took the whole body. `false` if the client went away before its end, or the body failed: then no
    /// tokens are given back, except with [`refund_incomplete`](crate::web::RateLimitLayer::refund_incomplete).
    ///
    /// The response that upgraded a connection is complete if each [`RequestHold`](crate::web::RequestHold) of the connection has been
    /// [finished](crate::web::RequestHold::finish), and there was one.
    pub const fn is_complete(&self) -> bool {
        self.is_complete
    }
}

/// How many requests are being settled.
#[derive(Clone, Debug, Default)]
pub(super) struct UnderWay(Arc<watch::Sender<u64>>);

pub(super) struct Counted(UnderWay);

impl UnderWay {
    pub(super) fn begin(&self) -> Counted {
        self.0.send_modify(|count| *count += 1);
        Counted(self.clone())
    }

    pub(super) async fn none(&self) {
        let mut count = self.0.subscribe();
        let _ = count.wait_for(|count| *count == 0).await; // The sender lives as long as `self`.
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.0.0.send_modify(|count| *count -= 1);
    }
}

/// The arguments of the closures of `settle`.
pub(super) struct Settlement {
    pub(super) rules: Arc<Rules>,
    pub(super) request: Parts,
    pub(super) response: SentResponse,
}

impl Settlement {
    pub(super) async fn settle_all(self, mut items: Vec<Item>, trials: Vec<Trial>) {
        // The usage of a response that was cut is rarely known.
        let keeps_estimate = !self.response.is_complete && !self.rules.refund_incomplete;
        for trial in trials {
            items.extend(trial.taken().await);
        }
        for item in items {
            // Here and not where the body ends, so that a slow or panicking closure harms no response.
            let settled = match catch_unwind(AssertUnwindSafe(|| self.used(&item))) {
                Err(_) => Err(None),
                Ok(None) => continue,
                Ok(Some(used)) if used.get() == item.tokens() => continue,
                Ok(Some(used)) if keeps_estimate && (0.0..item.tokens()).contains(&used.get()) => continue,
                Ok(Some(used)) => self.rules.limiter.settle(item.clone(), used).await.map_err(Some),
            };
            if let Err(error) = settled {
                self.rules.settle_failures.fetch_add(1, Ordering::Relaxed);
                log::not_settled(item.limit_name(), error.as_ref());
            }
        }
    }

    fn used(&self, item: &Item) -> Option<Tokens> {
        (self.rules.settle_of(item)?.used)(&self.request, &self.response)
    }
}

impl Rules {
    /// Whether the item is settled.
    pub(in crate::web) fn settles(&self, item: &Item) -> bool {
        self.settle_of(item).is_some()
    }

    fn settle_of(&self, item: &Item) -> Option<&Settle> {
        if item.limit.inline.is_some_and(|limit| limit.is_gate() || limit.kind() == Kind::Concurrency) {
            return None; // They have no tokens.
        }
        let settles = || self.settles.iter().rev();
        let own = settles().find(|settle| settle.limit.as_ref().is_some_and(|limit| *limit == item.limit.name));
        own.or_else(|| settles().find(|settle| settle.limit.is_none()))
    }
}
