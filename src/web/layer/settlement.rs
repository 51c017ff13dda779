//! Corrections after the response: of the tokens that a request took to those that it used.

use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use bytes::Buf;
use http::request::Parts;
use http::{Extensions, HeaderMap, StatusCode, response};
use http_body::Frame;
use tokio::runtime::Handle;
use tokio::sync::watch;

use crate::call::Item;
use crate::limit::{Kind, Tokens};
use crate::limiter::Lease;
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
    trailers: Option<HeaderMap>,
    body_bytes: u64,
    is_complete: bool,
}

impl SentResponse {
    /// Returns the status.
    pub const fn status(&self) -> StatusCode {
        self.parts.status
    }

    /// Returns the header fields.
    pub const fn headers(&self) -> &HeaderMap {
        &self.parts.headers
    }

    /// Returns the extensions. A handler that learns the usage while it streams the body inserts a shared counter here, such as
    /// an `Arc<AtomicU64>`, and adds to it while the body is sent.
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

    /// Returns whether the server took the whole body. `false` if the client went away before its end, or the body failed.
    pub const fn is_complete(&self) -> bool {
        self.is_complete
    }
}

/// The slots that a request holds, and the items to settle, until its response has been sent. Ends when it is dropped.
pub(super) struct Held {
    lease: Option<Lease>,
    trial: Option<Trial>,
    settlement: Option<Box<Settlement>>,
    is_complete: AtomicBool,
}

/// How many requests are being settled.
#[derive(Clone, Debug, Default)]
pub(super) struct UnderWay(Arc<watch::Sender<u64>>);

struct Counted(UnderWay);

impl UnderWay {
    fn begin(&self) -> Counted {
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

struct Settlement {
    rules: Arc<Rules>,
    items: Vec<Item>,
    request: Parts,
    response: SentResponse,
    runtime: Handle,
}

impl Held {
    pub(super) fn new(lease: Option<Lease>, trial: Option<Trial>) -> Self {
        Self { lease, trial, settlement: None, is_complete: AtomicBool::default() }
    }

    /// Also settles these items at the end.
    pub(super) fn settling(
        mut self,
        rules: &Arc<Rules>,
        items: Vec<Item>,
        request: Parts,
        parts: response::Parts,
    ) -> Self {
        if !items.is_empty() || self.trial.is_some() {
            let response = SentResponse { parts, trailers: None, body_bytes: 0, is_complete: false };
            self.settlement = Handle::try_current()
                .ok()
                .map(|runtime| Box::new(Settlement { rules: Arc::clone(rules), items, request, response, runtime }));
        }
        self
    }

    pub(super) fn sent<D: Buf>(&mut self, frame: &Frame<D>) {
        let Some(settlement) = &mut self.settlement else { return };
        if let Some(data) = frame.data_ref() {
            settlement.response.body_bytes += data.remaining() as u64;
        } else if let Some(trailers) = frame.trailers_ref() {
            settlement.response.trailers = Some(trailers.clone());
            self.complete(); // Nothing follows trailers, so servers do not ask for more.
        }
    }

    /// The server has taken the whole body. It need not ask for its end then.
    pub(super) fn complete(&self) {
        self.is_complete.store(true, Ordering::Relaxed);
    }

    /// Releases the slots and settles, both in the background.
    pub(super) fn end(&mut self) {
        self.lease.take();
        let trial = self.trial.take();
        if let Some(mut settlement) = self.settlement.take() {
            settlement.response.is_complete = self.is_complete.load(Ordering::Relaxed);
            let (runtime, counted) = (settlement.runtime.clone(), settlement.rules.settling.begin());
            runtime.spawn(async move {
                settlement.run(trial).await;
                drop(counted);
            });
        }
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        self.end();
    }
}

impl fmt::Debug for Held {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Held")
            .field("lease", &self.lease)
            .field("settles", &self.settlement.is_some())
            .finish_non_exhaustive()
    }
}

impl Settlement {
    async fn run(mut self: Box<Self>, trial: Option<Trial>) {
        if let Some(trial) = trial {
            self.items.extend(trial.taken().await);
        }
        for item in std::mem::take(&mut self.items) {
            // Here and not where the body ends, so that a slow or panicking closure harms no response.
            let settled = match catch_unwind(AssertUnwindSafe(|| self.used(&item))) {
                Err(_) => Err(None),
                Ok(None) => continue,
                Ok(Some(used)) if used.get() == item.tokens() => continue,
                Ok(Some(used)) => self.rules.limiter.settle(item.clone(), used).await.map_err(Some),
            };
            if let Err(error) = settled {
                self.rules.settle_failures.fetch_add(1, Ordering::Relaxed);
                log::not_settled(item.limit_name(), error.as_ref());
            }
        }
    }

    fn used(&self, item: &Item) -> Option<Tokens> {
        if item.limit.inline.is_some_and(|limit| limit.is_gate() || limit.kind() == Kind::Concurrency) {
            return None; // They have no tokens.
        }
        let settles = || self.rules.settles.iter().rev();
        let own = settles().find(|settle| settle.limit.as_ref().is_some_and(|limit| *limit == item.limit.name));
        let settle = own.or_else(|| settles().find(|settle| settle.limit.is_none()))?;
        (settle.used)(&self.request, &self.response)
    }
}
