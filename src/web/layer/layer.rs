use std::sync::Arc;
use std::sync::atomic::Ordering;

use http::request::Parts;
use tower_layer::Layer;

use crate::call::LimitRef;
use crate::error::{Error, InvalidCall};
use crate::limit::Tokens;
use crate::limiter::Limiter;
use crate::web::keys::KeyExtractor;
use crate::web::layer::RateLimitService;
use crate::web::layer::rules::{Cost, Rule, Rules};

/// How the layer treats a request without a decision: the database cannot be reached or has no schema, or too many
/// calls wait for it.
///
/// A request waits for up to the deadline of the limiter's [`RetryPolicy`](crate::RetryPolicy), 5 seconds by default, before
/// it is rejected or passed on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum OnFailure {
    /// Rejects the request with 503.
    #[default]
    Closed,
    /// Passes the request on to the inner service, and logs an event of level WARN. While the database is down, nothing is
    /// limited. If the outcome of a commit is unknown, tokens may have been taken.
    Open,
}

/// A tower layer that limits the requests to a service: see [`web`](crate::web). Cheap to clone.
///
/// # Default
/// - Every request costs 1 token of every limit.
/// - A request without a key is rejected with 400: see [`KeyExtractor`].
/// - A request without a decision is rejected with 503: [`OnFailure::Closed`].
/// - Responses have the fields `RateLimit` and `RateLimit-Policy`, and no `X-RateLimit-*`.
/// - Shadow mode is off.
/// - The layer decides before it calls the inner service.
///
/// # Which service
/// The layer wraps any service that returns an `http::Response`, such as those of axum, tonic and hyper. The data of the
/// body must be convertible from `Bytes`. The layer decides in `call` and not in `poll_ready`, because the key depends on the
/// request. Errors of the inner service pass through unchanged.
///
/// With axum, `Router::layer` limits all routes and the fallback, `Router::route_layer` only requests that match a route, and
/// `MethodRouter::layer` a single route. An outer layer runs first, so put authentication outside this layer. Preflight
/// requests of browsers (`OPTIONS`) count as requests: [`skip`](Self::skip) them, or put a CORS layer outside this one.
#[derive(Clone, Debug)]
#[must_use]
pub struct RateLimitLayer {
    rules: Arc<Rules>,
}

impl RateLimitLayer {
    /// Creates a layer without limits. Add them with [`limit`](Self::limit).
    pub fn new(limiter: Limiter) -> Self {
        Self { rules: Arc::new(Rules::new(limiter)) }
    }

    fn change(mut self, change: impl FnOnce(&mut Rules)) -> Self {
        change(Arc::make_mut(&mut self.rules));
        self
    }

    /// Adds a limit, and the extractor that finds its key. A request charges all limits of the layer or none. It holds a slot of a
    /// [concurrency limit](crate::Limit::concurrency) until the body of the response has ended, or the client is gone. (Not with
    /// `in_handler`.)
    ///
    /// # Errors
    /// [`InvalidCall::UnknownLimit`], as [`Error::Invalid`], if the limiter defines no limit of this name and the argument
    /// contains no definition.
    pub fn limit(self, limit: impl Into<LimitRef>, key: impl KeyExtractor + 'static) -> Result<Self, Error> {
        self.add(Rule { limit: limit.into(), key: Arc::new(key), cost: None })
    }

    /// Adds a limit with its own cost per request, in tokens: for example bytes, while other limits count requests. The rules
    /// of [`cost`](Self::cost) apply.
    ///
    /// # Errors
    /// See [`limit`](Self::limit).
    pub fn limit_with_cost<T: Into<Tokens>>(
        self,
        limit: impl Into<LimitRef>,
        key: impl KeyExtractor + 'static,
        cost: impl Fn(&Parts) -> T + Send + Sync + 'static,
    ) -> Result<Self, Error> {
        let cost: Cost = Arc::new(move |request| cost(request).into());
        self.add(Rule { limit: limit.into(), key: Arc::new(key), cost: Some(cost) })
    }

    fn add(self, rule: Rule) -> Result<Self, Error> {
        let name = &rule.limit.name;
        if rule.limit.inline.is_none() && self.rules.limiter.limits().get(name).is_none() {
            return Err(InvalidCall::UnknownLimit { limit: name.to_string() }.into());
        }
        Ok(self.change(|rules| rules.rules.push(rule)))
    }

    /// Sets the cost of a request in tokens (default: 1), for every limit without its own cost, except
    /// concurrency limits, of which a request holds one slot. A cost of 0 checks the limits
    /// and takes nothing. A request that costs more than a limit can ever grant is rejected with 400. A cost that is
    /// negative or not a number is a bug in the program, and the response is 500.
    pub fn cost<T: Into<Tokens>>(self, cost: impl Fn(&Parts) -> T + Send + Sync + 'static) -> Self {
        self.change(|rules| rules.cost = Some(Arc::new(move |request| cost(request).into())))
    }

    /// Exempts requests from all limits of the layer: for example health checks. The predicate runs before any key is
    /// extracted. A second call replaces the predicate.
    pub fn skip(self, skip: impl Fn(&Parts) -> bool + Send + Sync + 'static) -> Self {
        self.change(|rules| rules.skip = Some(Arc::new(skip)))
    }

    /// Sets what to do with a request if there is no decision (default: [`OnFailure::Closed`]). Requests without a key, or
    /// that cost too much, are rejected in either case.
    pub fn on_failure(self, on_failure: OnFailure) -> Self {
        self.change(|rules| rules.on_failure = on_failure)
    }

    /// Turns on shadow mode, to try limits on real traffic. The layer decides and takes tokens as usual, but passes every
    /// request on and adds no fields to responses. A denial is logged as an event of level INFO and counted in
    /// [`shadow_denials`](Self::shadow_denials).
    ///
    /// Shadow mode applies to all limits of the layer, because they are decided together. To try one limit while others are
    /// enforced, give it a separate layer. Requests still wait for the decision.
    pub fn shadow(self) -> Self {
        self.change(|rules| rules.shadow = true)
    }

    /// Returns how many requests this layer, its clones and their services would have denied without shadow mode.
    pub fn shadow_denials(&self) -> u64 {
        self.rules.shadow_denials.load(Ordering::Relaxed)
    }

    /// Leaves the decision to the handler, so that it can take the tokens in its own transaction. The layer extracts the keys,
    /// passes them to the handler as [`RequestLimits`](crate::web::RequestLimits), and adds the handler's decision to the
    /// fields of the response.
    ///
    /// **Nothing is limited unless the handler charges the limits.** If a handler succeeds without charging them, an event of
    /// level ERROR is logged, unless it [waived](crate::web::RequestLimits::waive) them.
    ///
    /// In its own transaction, the handler also decides what to do after a failure of the database.
    /// [`on_failure`](Self::on_failure) applies only to [`enforce`](crate::web::RequestLimits::enforce), which runs outside
    /// the handler's transaction.
    ///
    /// Wrap a handler in only one layer of this kind: with two, the response is 500. It may be combined with layers
    /// that decide themselves.
    pub fn in_handler(self) -> Self {
        self.change(|rules| rules.in_handler = true)
    }

    /// Adds the older fields `X-RateLimit-Limit`, `X-RateLimit-Remaining` and `X-RateLimit-Reset` (default: not added). They
    /// describe the limit that denied the request, or else the limit with the fewest tokens left. `Reset` is in seconds from
    /// now: `t` if there is one, otherwise `w`, after which the whole quota is available in any case.
    pub fn x_ratelimit_headers(self) -> Self {
        self.change(|rules| rules.fields.x_ratelimit = true)
    }

    /// Leaves out `RateLimit` and `RateLimit-Policy`, if you do not want to publish your limits (default: included). A 429
    /// still has `Retry-After` and the names of the limits that denied the request.
    pub fn without_ratelimit_headers(self) -> Self {
        self.change(|rules| rules.fields.draft = false)
    }
}

impl<S> Layer<S> for RateLimitLayer {
    type Service = RateLimitService<S>;

    fn layer(&self, inner: S) -> RateLimitService<S> {
        RateLimitService::new(inner, Arc::clone(&self.rules))
    }
}
