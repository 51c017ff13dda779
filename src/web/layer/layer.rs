use std::sync::Arc;
use std::sync::atomic::Ordering;

use http::request::Parts;
use tower_layer::Layer;

use crate::call::{Item, LimitRef};
use crate::error::{Error, InvalidCall};
use crate::limit::Tokens;
use crate::limiter::{Limiter, OnFailure};
use crate::web::address::{ClientAddress, Networks};
use crate::web::keys::KeyExtractor;
use crate::web::layer::rules::{BoxError, Chosen, Cost, Keyed, Rule, Rules};
use crate::web::layer::settlement::{Settle, Used};
use crate::web::layer::{RateLimitService, SentResponse};

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
/// requests of browsers (`OPTIONS`) count as requests: put a [CORS layer](crate::guide::web#cors) outside this one, or
/// [`skip`](Self::skip) them.
///
/// With tonic, `Server::layer` limits all services, and `tonic::service::LayerExt::named_layer` a single one. An interceptor
/// cannot limit, because it cannot wait for the database. The feature `tonic` adds [gRPC responses](crate::web#grpc).
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
    /// [concurrency limit](crate::Limit::concurrency) until the body of the response has ended, or the client is gone.
    ///
    /// **A connection that is upgraded, such as a WebSocket, holds no slot unless the handler moves a
    /// [`RequestHold`](crate::web::RequestHold) into it.** Otherwise the slot is free again with the response, and an event of level
    /// WARN is logged.
    ///
    /// # Errors
    /// [`InvalidCall::UnknownLimit`], as [`Error::Invalid`], if the limiter defines no limit of this name and the argument
    /// contains no definition.
    pub fn limit(self, limit: impl Into<LimitRef>, key: impl KeyExtractor + 'static) -> Result<Self, Error> {
        self.add(Keyed { limit: limit.into(), key: Arc::new(key), cost: None })
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
        self.add(Keyed { limit: limit.into(), key: Arc::new(key), cost: Some(cost) })
    }

    fn add(self, rule: Keyed) -> Result<Self, Error> {
        let name = &rule.limit.name;
        if rule.limit.inline.is_none() && self.rules.limiter.limits().get(name).is_none() {
            return Err(InvalidCall::UnknownLimit { limit: name.to_string() }.into());
        }
        Ok(self.change(|rules| rules.rules.push(Rule::Keyed(rule))))
    }

    /// Returns the name of a limit that requests of this layer may have.
    fn known(&self, name: &str) -> Result<Arc<str>, Error> {
        let is_known = self.rules.limiter.limits().get(name).is_some()
            || self.rules.rules.iter().any(|rule| match rule {
                Rule::Keyed(keyed) => *keyed.limit.name == *name,
                Rule::Chosen(_) | Rule::ChosenAsync(_) => true, // It may pass any limit inline.
            });
        if is_known { Ok(name.into()) } else { Err(InvalidCall::UnknownLimit { limit: name.to_owned() }.into()) }
    }

    /// Adds limits that a closure chooses for each request: none, one ([`Option`]) or several (an array or `Vec`). They are
    /// charged together with the layer's other limits, all or none. Each [`Item`] has its own count;
    /// [`cost`](Self::cost) does not apply to it. The item names a defined limit, or passes one inline.
    ///
    /// Here each plan has a limit, and all of them have one name. So the balance of an account stays when its plan changes:
    ///
    /// ```
    /// # use std::time::Duration;
    /// use pg_limiter::web::RateLimitLayer;
    /// use pg_limiter::{Item, Limit};
    ///
    /// #[derive(Clone)]
    /// struct Account { id: i64, is_paying: bool } // An outer layer inserts it into the request's extensions.
    ///
    /// # fn f(limiter: pg_limiter::Limiter) -> Result<(), Box<dyn std::error::Error>> {
    /// let free = Limit::token_bucket(60, Duration::from_secs(60)).build()?;
    /// let paying = Limit::token_bucket(6_000, Duration::from_secs(60)).build()?;
    /// let layer = RateLimitLayer::new(limiter).limit_by(move |request| {
    ///     let account = request.extensions.get::<Account>()?; // Without an account, no limit applies.
    ///     Some(Item::new(("api", if account.is_paying { paying } else { free }), account.id))
    /// });
    /// # Ok(()) }
    /// ```
    ///
    /// **A request without an item is not limited by it.** A client that can make the closure return none escapes the limit: to
    /// reject such requests, use an authenticating layer outside this one; to limit them, return an item for the client's
    /// address.
    ///
    /// Limits of one name must have one [kind](crate::Kind): a row does not store the kind of limit that wrote it. A limit that
    /// is not defined, and a count that is not a number of tokens, is a bug in the program: the response is 500.
    pub fn limit_by<I>(self, choose: impl Fn(&Parts) -> I + Send + Sync + 'static) -> Self
    where
        I: IntoIterator<Item = Item>,
    {
        let choose = move |request: &Parts| choose(request).into_iter().collect();
        self.change(|rules| rules.rules.push(Rule::Chosen(Arc::new(choose))))
    }

    /// Adds limits that an async closure chooses, for example after it has looked up a plan in a table. Otherwise like
    /// [`limit_by`](Self::limit_by). Read what you need from the request before the `async move` block: the future cannot
    /// borrow the request.
    ///
    /// The layer calls it for every request, and waits for it. So keep the plans in a cache that your application owns, and
    /// limit the time of the lookup yourself.
    ///
    /// ```
    /// use std::collections::HashMap;
    /// use std::sync::{Arc, RwLock};
    /// # use std::time::Duration;
    /// use pg_limiter::web::RateLimitLayer;
    /// use pg_limiter::{Item, Limit};
    ///
    /// /// The requests per minute of each account. Your application empties it when a plan changes.
    /// #[derive(Clone, Default)]
    /// struct Plans { cache: Arc<RwLock<HashMap<i64, f64>>> }
    ///
    /// impl Plans {
    ///     async fn rate(&self, pool: &sqlx::PgPool, account: i64) -> Result<f64, sqlx::Error> {
    ///         if let Some(rate) = self.cache.read().unwrap().get(&account) {
    ///             return Ok(*rate);
    ///         }
    ///         let select = "SELECT rate FROM accounts JOIN plans ON plans.id = plan WHERE accounts.id = $1";
    ///         let rate = sqlx::query_scalar(select).bind(account).fetch_one(pool).await?;
    ///         self.cache.write().unwrap().insert(account, rate);
    ///         Ok(rate)
    ///     }
    /// }
    ///
    /// #[derive(Clone, Copy)]
    /// struct Account(i64); // An outer layer inserts it into the request's extensions.
    ///
    /// # fn f(limiter: pg_limiter::Limiter, pool: sqlx::PgPool) {
    /// let plans = Plans::default();
    /// let layer = RateLimitLayer::new(limiter).limit_by_async(move |request| {
    ///     let account = request.extensions.get::<Account>().copied();
    ///     let (plans, pool) = (plans.clone(), pool.clone());
    ///     async move {
    ///         let Some(Account(id)) = account else { return Ok(None) };
    ///         let rate = plans.rate(&pool, id).await?;
    ///         let limit = Limit::token_bucket(rate, Duration::from_secs(60)).build()?;
    ///         Ok::<_, Box<dyn std::error::Error + Send + Sync>>(Some(Item::new(("api", limit), id)))
    ///     }
    /// });
    /// # }
    /// ```
    ///
    /// If it returns an error, the layer logs it, and the response is 503 as after any failure of the database. With
    /// [`OnFailure::Open`] or in [shadow mode](Self::shadow), the request is decided by the other limits only.
    pub fn limit_by_async<F, I, E>(self, choose: impl Fn(&Parts) -> F + Send + Sync + 'static) -> Self
    where
        F: Future<Output = Result<I, E>> + Send + 'static,
        I: IntoIterator<Item = Item>,
        E: Into<Box<dyn std::error::Error + Send + Sync>>,
    {
        let choose = move |request: &Parts| -> Chosen {
            let chosen = choose(request);
            Box::pin(async move { Ok(chosen.await.map_err(Into::<BoxError>::into)?.into_iter().collect()) })
        };
        self.change(|rules| rules.rules.push(Rule::ChosenAsync(Arc::new(choose))))
    }

    /// Rejects requests from these networks with 403, before any limit is charged. A second call adds networks. An address in
    /// both a denied and an [allowed](Self::allow_networks) network is denied. [Skipped](Self::skip) requests are not rejected.
    ///
    /// An unreadable client may be in the list, so it is rejected with 400: see [`ClientAddress::unreadable`].
    ///
    /// The list is part of the layer. To block clients at run time, in all processes, use a [gate](crate::Limit::gate).
    ///
    /// ```
    /// use pg_limiter::web::{ClientAddress, RateLimitLayer};
    /// # fn f(limiter: pg_limiter::Limiter) -> Result<(), Box<dyn std::error::Error>> {
    /// let client = ClientAddress::behind("10.0.0.0/8".parse()?);
    /// let layer = RateLimitLayer::new(limiter)
    ///     .deny_networks(client.clone(), "203.0.113.0/24, 2001:db8:bad::/48".parse()?)
    ///     .allow_networks(client, "198.51.100.7".parse()?);
    /// # Ok(()) }
    /// ```
    pub fn deny_networks(self, client: ClientAddress, networks: Networks) -> Self {
        self.change(|rules| rules.denied_networks.push((client, networks)))
    }

    /// Exempts requests from these networks from all limits of the layer: for example your own monitoring. A second call adds
    /// networks. They are looked up after the [denied networks](Self::deny_networks). An
    /// [unreadable client](ClientAddress::unreadable) is in none of them.
    pub fn allow_networks(self, client: ClientAddress, networks: Networks) -> Self {
        self.change(|rules| rules.allowed_networks.push((client, networks)))
    }

    /// Corrects what requests were charged, once it is known what they used. `used` gets the request, without its body, and the
    /// response after its body has been sent. It returns the tokens that the request used, or `None` to leave the estimate. The
    /// estimate is the request's [cost](Self::cost), or the count of its item. The layer gives back or charges the difference, as
    /// [`Limiter::settle`] does.
    ///
    /// **A response that is cut gives nothing back.** If the client goes away before the end, or the body fails, the usage until then is
    /// rarely known. So the estimate stays charged, unless the closure returns more. If your closure counts as it goes, turn on
    /// [`refund_incomplete`](Self::refund_incomplete).
    ///
    /// It applies to every limit of the layer without [its own](Self::settle_limit), except concurrency limits and gates. A
    /// second call replaces it.
    ///
    /// Only failed log-ins count here. A client that guesses still cannot guess more often than the limit allows, because each
    /// request takes its token before it is checked:
    ///
    /// ```
    /// use http::StatusCode;
    /// use pg_limiter::web::{ClientAddress, RateLimitLayer};
    ///
    /// # fn f(limiter: pg_limiter::Limiter) -> Result<(), pg_limiter::Error> {
    /// let layer = RateLimitLayer::new(limiter)
    ///     .limit("failed_log_ins", ClientAddress::direct())?
    ///     .settle(|_, response| Some(if response.status() == StatusCode::UNAUTHORIZED { 1 } else { 0 }));
    /// # Ok(()) }
    /// ```
    ///
    /// A handler that learns the usage at the end of a stream, as providers of language models report it, shares a cell in the
    /// response's [extensions](SentResponse::extensions). While the cell is empty, the closure returns `None`:
    ///
    /// ```
    /// # #[cfg(feature = "axum")]
    /// # mod app {
    /// use std::sync::{Arc, OnceLock};
    /// use axum::Extension;
    /// use axum::body::Body;
    /// use axum::response::IntoResponse;
    /// use pg_limiter::web::{HeaderKey, RateLimitLayer};
    ///
    /// #[derive(Clone, Default)]
    /// struct Usage(Arc<OnceLock<u64>>);
    ///
    /// # fn stream_of_the_model(_: Usage) -> Body { Body::empty() }
    /// async fn complete() -> impl IntoResponse {
    ///     let usage = Usage::default();
    ///     let body: Body = stream_of_the_model(usage.clone()); // Sets `usage` when the model reports it.
    ///     (Extension(usage), body)
    /// }
    ///
    /// # fn f(limiter: pg_limiter::Limiter) -> Result<(), Box<dyn std::error::Error>> {
    /// let layer = RateLimitLayer::new(limiter)
    ///     .limit("llm_tokens", HeaderKey::new("x-account")?)?
    ///     .cost(|_| 4_000) // the most that a request may use
    ///     .settle(|_, response| response.extensions().get::<Usage>()?.0.get().copied());
    /// # Ok(()) }
    /// # }
    /// ```
    ///
    /// # When it runs
    /// In the background, when the body of the response has ended, or is dropped because the client went away (see
    /// [`is_complete`](SentResponse::is_complete)), and each [`RequestHold`](crate::web::RequestHold) of the request is dropped. It delays
    /// no response, and changes none.
    ///
    /// **Until then, and whenever it does not run, the estimate stays charged**: if the process dies, if the inner service
    /// returns an error or panics, if the client goes away before the handler has responded, if the runtime shuts down (see
    /// [`settled`](Self::settled)), or if the database is down. So estimate the most that a request may use, and nothing is over-admitted. A failure is logged and
    /// counted in [`settle_failures`](Self::settle_failures), and in the metric `pg_limiter_errors_total` with `op="settle"`. Then
    /// the correction was made or not, never twice.
    ///
    /// Requests that took nothing are not settled: those denied, [skipped](Self::skip), or let through by
    /// [`OnFailure::Open`]. With [`in_handler`](Self::in_handler), it settles what
    /// [`enforce`](crate::web::RequestLimits::enforce) took, also of limits that only the handler [added](crate::web::RequestLimits::and).
    /// In the handler's transaction, which may have rolled back, settle yourself with [`Within::settle`](crate::Within::settle).
    ///
    /// A number of tokens that is negative or not a number is a bug in the program: it is logged, and the estimate stays.
    pub fn settle<T: Into<Tokens>>(
        self,
        used: impl Fn(&Parts, &SentResponse) -> Option<T> + Send + Sync + 'static,
    ) -> Self {
        self.add_settle(None, used)
    }

    /// Also gives tokens back if a response is [cut](SentResponse::is_complete), as the closures of [`settle`](Self::settle) and
    /// [`settle_limit`](Self::settle_limit) return: for closures that count as they go, and so know the usage until then
    /// (default: off).
    ///
    /// **Every closure of the layer must be right for such responses**: it returns `None` if it does not know the usage. A counter
    /// that is only set at the end would give back the whole estimate, and a client that closes each connection early would pay for
    /// nothing.
    ///
    /// ```
    /// # #[cfg(feature = "axum")]
    /// # mod app {
    /// use std::sync::Arc;
    /// use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
    /// use pg_limiter::web::{HeaderKey, RateLimitLayer};
    ///
    /// // The handler inserts it into the response's extensions, and adds to it before it sends each part of the body.
    /// #[derive(Clone, Default)]
    /// struct Exported(Arc<AtomicU64>);
    ///
    /// # fn f(limiter: pg_limiter::Limiter) -> Result<(), Box<dyn std::error::Error>> {
    /// let layer = RateLimitLayer::new(limiter)
    ///     .limit("exported_rows", HeaderKey::new("x-account")?)?
    ///     .cost(|_| 10_000) // the most that a request may export
    ///     .settle(|_, response| response.extensions().get::<Exported>().map(|rows| rows.0.load(Relaxed)))
    ///     .refund_incomplete();
    /// # Ok(()) }
    /// # }
    /// ```
    pub fn refund_incomplete(self) -> Self {
        self.change(|rules| rules.refund_incomplete = true)
    }

    /// Like [`settle`](Self::settle), for the limit with this name only.
    ///
    /// ```
    /// use pg_limiter::web::{HeaderKey, RateLimitLayer};
    ///
    /// # fn f(limiter: pg_limiter::Limiter) -> Result<(), Box<dyn std::error::Error>> {
    /// let layer = RateLimitLayer::new(limiter)
    ///     .limit("requests", HeaderKey::new("x-account")?)?
    ///     .limit("bytes_sent", HeaderKey::new("x-account")?)?
    ///     .settle_limit("bytes_sent", |_, response| Some(response.body_bytes()))?;
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// [`InvalidCall::UnknownLimit`], as [`Error::Invalid`], if neither the layer nor its limiter has a limit of this name. So
    /// call it after the limits are added.
    pub fn settle_limit<T: Into<Tokens>>(
        self,
        limit: &str,
        used: impl Fn(&Parts, &SentResponse) -> Option<T> + Send + Sync + 'static,
    ) -> Result<Self, Error> {
        let limit = self.known(limit)?;
        Ok(self.add_settle(Some(limit), used))
    }

    fn add_settle<T: Into<Tokens>>(
        self,
        limit: Option<Arc<str>>,
        used: impl Fn(&Parts, &SentResponse) -> Option<T> + Send + Sync + 'static,
    ) -> Self {
        let used: Used = Arc::new(move |request, response| used(request, response).map(Into::into));
        self.change(|rules| rules.settles.push(Settle { limit, used }))
    }

    /// Waits until all responses that have been sent are settled. Call it after a graceful shutdown of the server: otherwise the
    /// estimates of the last requests stay charged. It does not wait for those that a
    /// [`RequestHold`](crate::web::RequestHold) still holds: servers do not wait for upgraded connections either.
    ///
    /// ```no_run
    /// # #[cfg(feature = "axum")]
    /// # async fn f(
    /// #     limiter: pg_limiter::Limiter,
    /// #     layer: pg_limiter::web::RateLimitLayer,
    /// #     listener: tokio::net::TcpListener,
    /// #     app: axum::Router,
    /// # ) -> Result<(), Box<dyn std::error::Error>> {
    /// axum::serve(listener, app).with_graceful_shutdown(pg_limiter::queue::stop_signal()).await?;
    /// layer.settled().await; // A clone of the layer of `app`.
    /// limiter.close().await;
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// None. Each settlement ends by the deadline of the [`RetryPolicy`](crate::RetryPolicy).
    ///
    /// # Cancel safety
    /// Safe. The settlements go on.
    ///
    /// # In a transaction
    /// The settlements run in the limiter's own transactions.
    pub async fn settled(&self) {
        self.rules.settling.none().await;
    }

    /// Returns how many limits of requests could not be settled, over this layer, its clones and their services.
    pub fn settle_failures(&self) -> u64 {
        self.rules.settle_failures.load(Ordering::Relaxed)
    }

    /// Sets the cost of a request in tokens (default: 1), for every limit without its own cost, except
    /// concurrency limits, of which a request holds one slot. A cost of 0 checks the limits
    /// and takes nothing, also no slot. A request that costs more than a limit can ever grant is rejected with 400. A cost that is
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
    /// enforced, use [`shadow_limit`](Self::shadow_limit). Requests still wait for the decision.
    pub fn shadow(self) -> Self {
        self.change(|rules| rules.shadow = true)
    }

    /// Turns on shadow mode for the limit with this name, while the layer's other limits are enforced. If the other limits
    /// allow a request, this limit is decided alone, as if it were enforced: it takes tokens or denies. A request that it denies, or that
    /// lacks its key, passes. A denial is logged, and counted in [`shadow_denials_of`](Self::shadow_denials_of) and in the metric
    /// `pg_limiter_shadow_denials_total` of this limit.
    ///
    /// The layer decides it in the background. It delays and fails no request, and adds no fields to responses. The exception is
    /// [`enforce_within`](crate::web::RequestLimits::enforce_within), which decides it in the handler's transaction.
    ///
    /// ```
    /// use pg_limiter::web::{ClientAddress, HeaderKey, RateLimitLayer};
    ///
    /// # fn f(limiter: pg_limiter::Limiter) -> Result<(), Box<dyn std::error::Error>> {
    /// let layer = RateLimitLayer::new(limiter)
    ///     .limit("per_address", ClientAddress::direct())?
    ///     .limit("per_org", HeaderKey::new("x-org")?)?
    ///     .shadow_limit("per_org")?;
    /// println!("{} requests would have been denied", layer.shadow_denials_of("per_org"));
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// [`InvalidCall::UnknownLimit`], as [`Error::Invalid`], if neither the layer nor its limiter has a limit of this name. So
    /// call it after the limits are added.
    pub fn shadow_limit(self, limit: &str) -> Result<Self, Error> {
        let limit = self.known(limit)?;
        Ok(self.change(|rules| {
            rules.shadow_limits.entry(limit).or_default();
        }))
    }

    /// Returns how many requests this layer, its clones and their services would have denied without shadow mode, of the layer
    /// or of single limits.
    pub fn shadow_denials(&self) -> u64 {
        self.rules.shadow_denials.load(Ordering::Relaxed)
    }

    /// Returns how many requests the limit with this name would have denied if it were not in
    /// [shadow mode](Self::shadow_limit). 0 for other limits.
    pub fn shadow_denials_of(&self, limit: &str) -> u64 {
        self.rules.shadow_limits.get(limit).map_or(0, |denials| denials.load(Ordering::Relaxed))
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
    /// Slots of a [concurrency limit](crate::Limit::concurrency) are taken when the handler charges the limits, together with the
    /// tokens or not at all, and are held until the response has been sent, as without `in_handler`.
    ///
    /// Wrap a handler in only one layer of this kind: with two, the response is 500. It may be combined with layers
    /// that decide themselves.
    pub fn in_handler(self) -> Self {
        self.change(|rules| rules.in_handler = true)
    }

    /// Adds the older fields `X-RateLimit-Limit`, `X-RateLimit-Remaining` and `X-RateLimit-Reset` (default: not added). They
    /// describe the limit that denied the request, or else the limit with the fewest tokens left. `Reset` is in seconds from
    /// now: the [`t`](crate::web#responses) of that limit; 0 if a token bucket is full, 1 for a concurrency limit. If the end of a
    /// window is not known, it is the length of the window. A handler's own 429 for another reason does not get them.
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
