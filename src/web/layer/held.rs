//! The slots and tokens that a request has taken, until its response has been sent and no connection or task holds them.

use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bytes::Buf;
use http::header::CONTENT_LENGTH;
use http::request::Parts;
use http::{HeaderMap, Method, StatusCode, response};
use http_body::Frame;
use tokio::runtime::Handle;

use crate::call::Item;
use crate::limiter::Lease;
use crate::web::layer::Rules;
use crate::web::layer::settlement::{SentResponse, Settlement};
use crate::web::layer::trial::Trial;
use crate::web::log;

/// The slots and tokens that a request has taken. When its last holder drops it, it releases the slots and settles the tokens,
/// both in the background. Its holders are the service until it has responded, then the body of the response, and each
/// [`RequestHold`](crate::web::RequestHold).
pub(in crate::web) struct Held {
    rules: Arc<Rules>,
    taken: Mutex<Taken>,
    /// The request, for the closures of `settle`. None if there are none.
    request: Option<Parts>,
    /// None until the body has ended.
    response: Mutex<Option<Box<SentResponse>>>,
    has_responded: AtomicBool,
    /// Whether a hold was dropped before its work was finished.
    is_cut: AtomicBool,
    runtime: Option<Handle>,
}

#[derive(Default)]
struct Taken {
    /// The items of which tokens were taken in a transaction of the limiter's own.
    items: Vec<Item>,
    leases: Vec<Arc<Lease>>,
    trials: Vec<Trial>,
}

impl Held {
    pub(super) fn new(rules: &Arc<Rules>, request: Option<Parts>) -> Arc<Self> {
        Arc::new(Self {
            rules: Arc::clone(rules),
            taken: Mutex::default(),
            request,
            response: Mutex::default(),
            has_responded: AtomicBool::default(),
            is_cut: AtomicBool::default(),
            runtime: Handle::try_current().ok(),
        })
    }

    fn taken(&self) -> MutexGuard<'_, Taken> {
        self.taken.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(in crate::web) fn add(&self, items: Vec<Item>, lease: Option<Lease>) {
        let mut taken = self.taken();
        taken.items.extend(items);
        taken.leases.extend(lease.map(Arc::new));
    }

    pub(in crate::web) fn add_trial(&self, trial: Option<Trial>) {
        self.taken().trials.extend(trial);
    }

    pub(in crate::web) fn leases(&self) -> Vec<Arc<Lease>> {
        self.taken().leases.clone()
    }

    /// A hold is dropped. Before the response, it cuts nothing off.
    pub(in crate::web) fn hold_ends(&self, is_finished: bool) {
        if !is_finished && self.has_responded.load(Ordering::Acquire) {
            self.is_cut.store(true, Ordering::Release);
        }
    }

    /// Follows the body of the response.
    pub(super) fn respond(self: Arc<Self>, method: &Method, response: &response::Parts) -> Sending {
        self.has_responded.store(true, Ordering::Release);
        let is_upgrade = response.status == StatusCode::SWITCHING_PROTOCOLS
            || (*method == Method::CONNECT && response.status.is_success());
        let is_held = Arc::strong_count(&self) > 1;
        if is_upgrade && !is_held {
            self.warn_of_upgrade();
        }
        let has_no_body =
            *method == Method::HEAD || [StatusCode::NO_CONTENT, StatusCode::NOT_MODIFIED].contains(&response.status);
        let sent = self.request.is_some().then(|| Box::new(SentResponse::new(response.clone())));
        Sending {
            held: Some(self),
            response: sent,
            // After an upgrade, the connection goes on. Only its holds know how it ends.
            is_complete: AtomicBool::new(if is_upgrade { is_held } else { has_no_body }),
            is_upgrade,
        }
    }

    /// Logs the limits of which an upgraded connection holds nothing.
    fn warn_of_upgrade(&self) {
        let taken = self.taken();
        let slots = taken.leases.iter().flat_map(|lease| lease.slots());
        let tokens = taken.items.iter().filter(|item| self.rules.settles(item));
        let limits: Vec<&str> = slots.map(|slot| &**slot).chain(tokens.map(|item| &*item.limit.name)).collect();
        if !limits.is_empty() {
            log::not_held(&limits);
        }
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        let Taken { items, leases, trials } =
            std::mem::take(self.taken.get_mut().unwrap_or_else(PoisonError::into_inner));
        drop(leases);
        let response = self.response.get_mut().unwrap_or_else(PoisonError::into_inner).take();
        let (Some(request), Some(mut response), Some(runtime)) = (self.request.take(), response, &self.runtime) else {
            return;
        };
        if *self.is_cut.get_mut() {
            response.is_complete = false;
        }
        if items.is_empty() && trials.is_empty() {
            return;
        }
        let counted = self.rules.settling.begin();
        let settlement = Settlement { rules: Arc::clone(&self.rules), request, response: *response };
        runtime.spawn(async move {
            settlement.settle_all(items, trials).await;
            drop(counted);
        });
    }
}

/// Holds what a request has taken while the body of its response is sent.
pub(super) struct Sending {
    held: Option<Arc<Held>>,
    /// None if nothing is settled.
    response: Option<Box<SentResponse>>,
    is_complete: AtomicBool,
    is_upgrade: bool,
}

impl Sending {
    pub(super) fn sent<D: Buf>(&mut self, frame: &Frame<D>) {
        if frame.is_trailers() {
            self.complete(); // Nothing follows trailers, so servers do not ask for more.
        }
        let Some(response) = &mut self.response else { return };
        if let Some(data) = frame.data_ref() {
            response.body_bytes += data.remaining() as u64;
        } else if let Some(trailers) = frame.trailers_ref() {
            response.trailers = Some(trailers.clone());
        }
    }

    /// The server has taken the whole body. It need not ask for its end then.
    pub(super) fn complete(&self) {
        if !self.is_upgrade {
            self.is_complete.store(true, Ordering::Relaxed);
        }
    }

    /// The body is no longer sent.
    pub(super) fn end(&mut self) {
        let Some(held) = self.held.take() else { return };
        if let Some(mut response) = self.response.take() {
            // Servers need not ask for the end of a body of which they know the length.
            let is_whole = !self.is_upgrade && length(response.headers()) == Some(response.body_bytes);
            response.is_complete = is_whole || self.is_complete.load(Ordering::Relaxed);
            *held.response.lock().unwrap_or_else(PoisonError::into_inner) = Some(response);
        }
    }
}

fn length(headers: &HeaderMap) -> Option<u64> {
    headers.get(CONTENT_LENGTH)?.to_str().ok()?.parse().ok()
}

impl Drop for Sending {
    fn drop(&mut self) {
        self.end();
    }
}

impl fmt::Debug for Held {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Held")
            .field("leases", &self.taken().leases)
            .field("settles", &self.request.is_some())
            .finish_non_exhaustive()
    }
}

impl fmt::Debug for Sending {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Sending").field("held", &self.held).finish_non_exhaustive()
    }
}
