use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use http::{Method, Request, Response};
use tower_service::Service;

use crate::web::RequestLimits;
use crate::web::answer::{Protocol, Refusal, Standing};
use crate::web::keys::NoKey;
use crate::web::layer::ResponseBody;
use crate::web::layer::held::Held;
use crate::web::layer::rules::{Passed, Rules, Verdict, limits};
use crate::web::request_hold::offer;

/// A service that limits its requests. Created by [`RateLimitLayer`](crate::web::RateLimitLayer).
///
/// # Cancel safety
/// Dropping the future of a response is safe: the tokens are taken or not, never in part.
#[derive(Clone, Debug)]
pub struct RateLimitService<S> {
    inner: S,
    rules: Arc<Rules>,
}

impl<S> RateLimitService<S> {
    pub(super) const fn new(inner: S, rules: Arc<Rules>) -> Self {
        Self { inner, rules }
    }
}

impl<S, RequestBody, Body> Service<Request<RequestBody>> for RateLimitService<S>
where
    S: Service<Request<RequestBody>, Response = Response<Body>> + Clone + Send + 'static,
    S::Future: Send,
    RequestBody: Send + 'static,
    Body: 'static,
{
    type Response = Response<ResponseBody<Body>>;
    type Error = S::Error;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, S::Error>> + Send>>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(cx)
    }

    fn call(&mut self, request: Request<RequestBody>) -> Self::Future {
        // Call the instance that is ready; its clone may not be.
        let clone = self.inner.clone();
        let inner = std::mem::replace(&mut self.inner, clone);
        Box::pin(limited(inner, Arc::clone(&self.rules), request))
    }
}

async fn limited<S, RequestBody, Body>(
    mut inner: S,
    rules: Arc<Rules>,
    request: Request<RequestBody>,
) -> Result<Response<ResponseBody<Body>>, S::Error>
where
    S: Service<Request<RequestBody>, Response = Response<Body>> + Send,
    S::Future: Send,
    RequestBody: Send,
{
    let (mut parts, body) = request.into_parts();
    let protocol = Protocol::of(&parts.headers);
    let items = match rules.items(&parts).await {
        Ok(items) => items,
        Err(refusal) => return Ok(refuse(&rules, &protocol, &refusal, &[])),
    };
    let method = parts.method.clone();
    let settles = !rules.settles.is_empty() && (rules.in_handler || !items.is_empty());
    let held = Held::new(&rules, settles.then(|| parts.clone()));
    offer(&mut parts.extensions, &held);
    if rules.in_handler {
        // Not later: the handler's transaction may hold the last connection of the pool.
        rules.learn_windows(&limits(&rules.divide(&items).0)).await;
        let limits = RequestLimits::new(Arc::clone(&rules), items, &held);
        if parts.extensions.insert(limits.clone()).is_some() {
            // The limits of the other layer would be lost.
            return Ok(refuse(&rules, &protocol, &Refusal::without_key(&two_in_handler()), &[]));
        }
        let mut response = inner.call(Request::from_parts(parts, body)).await?;
        limits.add_fields(&mut response);
        return Ok(hold(held, &method, response));
    }
    match rules.verdict_of(&items).await {
        Verdict::Pass(Passed { standings, taken, lease, trial }) => {
            held.add(taken, lease);
            held.add_trial(trial);
            let mut response = inner.call(Request::from_parts(parts, body)).await?;
            rules.add_fields(&mut response, &standings);
            Ok(hold(held, &method, response))
        }
        Verdict::Refuse(refusal, standings) => Ok(refuse(&rules, &protocol, &refusal, &standings)),
    }
}

fn refuse<Body>(
    rules: &Rules,
    protocol: &Protocol,
    refusal: &Refusal,
    standings: &[Standing],
) -> Response<ResponseBody<Body>> {
    let mut response = refusal.response(protocol);
    rules.add_fields(&mut response, standings);
    response.map(ResponseBody::refusal)
}

/// Keeps what the request has taken until the response has been sent.
fn hold<Body>(held: Arc<Held>, method: &Method, response: Response<Body>) -> Response<ResponseBody<Body>> {
    let (parts, body) = response.into_parts();
    let sending = held.respond(method, &parts);
    Response::from_parts(parts, ResponseBody::inner(body, sending))
}

fn two_in_handler() -> NoKey {
    let advice = "two layers with in_handler() wrap one handler; move their limits into one layer";
    NoKey::Misconfigured { advice: advice.into() }
}
