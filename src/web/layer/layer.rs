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

/// What becomes of a request for which there is no decision: the database cannot be reached, is not set up, or too many
/// calls wait for it.
///
/// It comes by the deadline of the limiter's [`RetryPolicy`](crate::RetryPolicy), 5 seconds unless it is set: a request is
/// kept waiting that long before it is refused or let through.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum OnFailure {
    /// It is refused, with 503.
    #[default]
    Closed,
    /// It is let through, and a WARN is traced: as long as the database is away, there are no limits. A commit whose outcome
    /// is not known may have taken tokens.
    Open,
}

/// Limits the requests to a service: see [`web`](crate::web). Cheap to clone.
///
/// # Default
/// - every request that is not skipped costs 1 of every limit
/// - a request that lacks a key is refused with 400, see [`KeyExtractor`]
/// - [`OnFailure::Closed`]
/// - the fields `RateLimit` and `RateLimit-Policy`, no `X-RateLimit-*`
/// - not in shadow mode, and decided before the inner service
///
/// # Which service
/// Any whose responses are `http::Response`, with any body whose data can be made of `Bytes`: of axum, tonic, hyper. The check
/// is made in `call`, because the key depends on the request; a service that has said it is ready stays so meanwhile. Its
/// errors pass through.
///
/// With axum, `Router::layer` limits its routes and its fallback, `Router::route_layer` only what matches a route, and
/// `MethodRouter::layer` a single one. A layer around another one comes first: authenticate outside, limit inside.
/// Preflight requests of browsers (`OPTIONS`) are requests, too: [`skip`](Self::skip) them, or put a CORS layer around
/// this one.
#[derive(Clone, Debug)]
#[must_use]
pub struct RateLimitLayer {
    rules: Arc<Rules>,
}

impl RateLimitLayer {
    /// Without limits yet.
    pub fn new(limiter: Limiter) -> Self {
        Self { rules: Arc::new(Rules::new(limiter)) }
    }

    fn change(mut self, change: impl FnOnce(&mut Rules)) -> Self {
        change(Arc::make_mut(&mut self.rules));
        self
    }

    /// One more limit: all of them are charged, or none.
    ///
    /// # Errors
    /// [`InvalidCall::UnknownLimit`], as [`Error::Invalid`], if the limiter knows none of that name and none is given with
    /// it: found here, not at the first request.
    pub fn limit(self, limit: impl Into<LimitRef>, key: impl KeyExtractor + 'static) -> Result<Self, Error> {
        self.add(Rule { limit: limit.into(), key: Arc::new(key), cost: None })
    }

    /// One more limit with a cost of its own: bytes, say, where others count requests. See [`cost`](Self::cost).
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

    /// How many tokens a request costs (default: 1), of every limit without a cost of its own. 0 asks without taking. A
    /// request that costs more than a limit can ever grant is refused with 400; what is no number, or below 0, is a
    /// mistake of the program, with 500.
    pub fn cost<T: Into<Tokens>>(self, cost: impl Fn(&Parts) -> T + Send + Sync + 'static) -> Self {
        self.change(|rules| rules.cost = Some(Arc::new(move |request| cost(request).into())))
    }

    /// Which requests are not limited at all: a health check, an own monitor. Asked before anything else; if it is set
    /// again, the last one holds.
    pub fn skip(self, skip: impl Fn(&Parts) -> bool + Send + Sync + 'static) -> Self {
        self.change(|rules| rules.skip = Some(Arc::new(skip)))
    }

    /// What becomes of a request for which there is no decision (default: [`OnFailure::Closed`]). Requests without a key, or
    /// that cost too much, are refused in any case.
    pub fn on_failure(self, on_failure: OnFailure) -> Self {
        self.change(|rules| rules.on_failure = on_failure)
    }

    /// Decides, counts and traces, but never refuses, whatever happens, and tells clients nothing: to try limits on real
    /// traffic. Tokens are taken as they would be. A denial is an event of level INFO, and counted in
    /// [`shadow_denials`](Self::shadow_denials).
    ///
    /// It is for all limits of this layer, which are decided together. To try one beside others that hold, give it a layer
    /// of its own. Requests wait for the decision all the same.
    pub fn shadow(self) -> Self {
        self.change(|rules| rules.shadow = true)
    }

    /// How many requests this layer, its clones and their services would have refused, but for shadow mode.
    pub fn shadow_denials(&self) -> u64 {
        self.rules.shadow_denials.load(Ordering::Relaxed)
    }

    /// Leaves the decision to the handler, for its own transaction: the layer finds the keys, hands them on as
    /// [`RequestLimits`](crate::web::RequestLimits), and puts what was decided then into the fields of the response.
    ///
    /// **Nothing is limited unless the handler asks.** One that succeeds and has not asked is traced, as an event of level
    /// ERROR, unless it [waived](crate::web::RequestLimits::waive) its limits. The
    /// handler also chooses what to do about a failure within its transaction: [`on_failure`](Self::on_failure) holds only
    /// for [`enforce`](crate::web::RequestLimits::enforce), which decides outside of it. Two such layers around one handler are a mistake of the program, with
    /// 500; one beside a layer that decides itself is none.
    pub fn in_handler(self) -> Self {
        self.change(|rules| rules.in_handler = true)
    }

    /// Adds `X-RateLimit-Limit`, `-Remaining` and `-Reset`, as many clients know them: of the limit that refused, or has the
    /// least left. Reset is in seconds from now: `t` if there is one, else `w`, after which the quota is there again in any case.
    pub fn x_ratelimit_headers(self) -> Self {
        self.change(|rules| rules.fields.x_ratelimit = true)
    }

    /// Leaves out `RateLimit` and `RateLimit-Policy`, for those who do not want to tell their limits. A 429 still has
    /// `Retry-After` and the names of the limits that refused.
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
