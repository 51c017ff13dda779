use std::fmt;
use std::future::poll_fn;
use std::pin::Pin;
use std::sync::{Arc, Weak};
use std::task::Poll;

use http::Extensions;

use crate::web::layer::Held;

/// Holds what a request has taken, beyond its response: slots stay taken, and tokens are not settled, until this is dropped.
///
/// Without it, a request holds its slots until its response has been sent. That is too early for a connection that is *upgraded* by
/// the response: a WebSocket, or a tunnel of the method `CONNECT`, over HTTP/1.1 or HTTP/2. **Such a connection holds no slot unless
/// the handler moves a `RequestHold` into it.** If it holds nothing, an event of level WARN is logged, the slots are free again with the
/// response, and the tokens are settled like those of an incomplete response: see [`settle`](crate::web::RateLimitLayer::settle).
///
/// With axum it is an extractor. It can also hold for a task that works on after the response.
///
/// ```no_run
/// # #[cfg(feature = "axum")]
/// # mod app {
/// use axum::extract::ws::{WebSocket, WebSocketUpgrade};
/// use axum::response::Response;
/// use axum::{Router, routing::any};
/// use pg_limiter::web::{HeaderKey, RateLimitLayer, RequestHold};
///
/// async fn chat(upgrade: WebSocketUpgrade, hold: RequestHold) -> Response {
///     upgrade.on_upgrade(async move |socket| {
///         tokio::select! {
///             () = talk(socket) => hold.finish(),
///             () = hold.lost() => {} // Others may have the slot: the socket is closed.
///         }
///     })
/// }
///
/// async fn talk(mut socket: WebSocket) {
///     while let Some(Ok(message)) = socket.recv().await {
///         if socket.send(message).await.is_err() {
///             break;
///         }
///     }
/// }
///
/// // sockets: Limit::concurrency(2)
/// fn app(limiter: pg_limiter::Limiter) -> Result<Router, Box<dyn std::error::Error>> {
///     let layer = RateLimitLayer::new(limiter).limit("sockets", HeaderKey::new("x-account")?)?;
///     Ok(Router::new().route("/chat", any(chat)).layer(layer))
/// }
/// # }
/// ```
///
/// It holds what every [`RateLimitLayer`](crate::web::RateLimitLayer) around the handler has taken for the request, also what the
/// handler takes later with [`RequestLimits::enforce`](crate::web::RequestLimits::enforce). If there is no layer, or the request has
/// no limits, it holds nothing.
///
/// # Settling
/// [`settle`](crate::web::RateLimitLayer::settle) runs when the response has been sent and all holds of the request are dropped. The
/// response is then [complete](crate::web::SentResponse::is_complete) only if the holds have been [finished](Self::finish). So if the
/// connection breaks, or its task panics, nothing is given back, except with
/// [`refund_incomplete`](crate::web::RateLimitLayer::refund_incomplete).
#[must_use = "the request holds nothing once this is dropped"]
pub struct RequestHold {
    held: Vec<Arc<Held>>,
    is_finished: bool,
}

/// The state that the handler of a request may hold, in the request's extensions. The offer holds nothing itself, because extensions may
/// live longer than the request.
#[derive(Clone)]
struct Offer(Vec<Weak<Held>>);

/// Lets the handler hold this, and what outer layers offer.
pub(super) fn offer(extensions: &mut Extensions, held: &Arc<Held>) {
    let mut offers = extensions.remove::<Offer>().map_or_else(Vec::new, |Offer(offers)| offers);
    offers.push(Arc::downgrade(held));
    extensions.insert(Offer(offers));
}

impl RequestHold {
    /// Holds what the request with these extensions has taken, in a handler without an extractor: of a tower service, or of tonic.
    /// Holds nothing if there is no layer, or if the response has already been sent.
    pub fn of(extensions: &Extensions) -> Self {
        let offers = extensions.get::<Offer>().map_or(&[][..], |Offer(offers)| offers);
        Self { held: offers.iter().filter_map(Weak::upgrade).collect(), is_finished: false }
    }

    /// Ends the hold after the work has been done as intended. If the hold is dropped instead, the response counts as
    /// [incomplete](crate::web::SentResponse::is_complete).
    pub fn finish(mut self) {
        self.is_finished = true;
    }

    /// Waits until a slot that the request had taken at the time of this call is lost: its lease has ended without a renewal,
    /// because the database was away for longer. End the work then, because others may hold the slot. Waits forever if the request
    /// has no slots.
    ///
    /// # Errors
    /// None.
    ///
    /// # Cancel safety
    /// Safe.
    ///
    /// # In a transaction
    /// Makes no call.
    pub async fn lost(&self) {
        let leases: Vec<_> = self.held.iter().flat_map(|held| held.leases()).collect();
        let mut lost: Vec<Pin<Box<_>>> = leases.iter().map(|lease| Box::pin(lease.lost())).collect();
        poll_fn(|cx| match lost.iter_mut().any(|lost| lost.as_mut().poll(cx).is_ready()) {
            true => Poll::Ready(()),
            false => Poll::Pending,
        })
        .await;
    }
}

impl Drop for RequestHold {
    fn drop(&mut self) {
        self.held.iter().for_each(|held| held.hold_ends(self.is_finished));
    }
}

impl fmt::Debug for RequestHold {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RequestHold").field("held", &self.held).finish_non_exhaustive()
    }
}
