use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use http::StatusCode;
use reqwest::{Request, Response};

use crate::call::{Call, Item, Op, Resolved};
use crate::error::{Error, InvalidCall};
use crate::limiter::{Limiter, OnFailure};
use crate::retry::longest;

type ChooseItems = Arc<dyn Fn(&Request) -> Vec<Item> + Send + Sync>;
type ChooseGate = Arc<dyn Fn(&Request) -> Option<Item> + Send + Sync>;
type Predicate = Arc<dyn Fn(&Request) -> bool + Send + Sync>;
type PauseFor = Arc<dyn Fn(&Response) -> Option<Duration> + Send + Sync>;

/// A middleware that limits the requests of a reqwest client: see [`outgoing`](crate::outgoing). Cheap to clone.
///
/// # Default
/// - No limit and no gate: add them with [`limit`](Self::limit) and [`gate`](Self::gate).
/// - `max_wait`: 30 s
/// - `max_retries`: 3
/// - `default_pause`: 1 s, after a 429 that states no time
/// - `min_pause`: 1 s, after a response that states a time
/// - `max_pause`: 1 hour
/// - Refusals are a 429, and a 503 with `Retry-After`. A refused request is repeated, but after a 503 only if its method is
///   idempotent.
/// - A request without a decision is not sent: [`OnFailure::Closed`].
///
/// # Which place among other middleware
/// Add it last, so that each request that is really sent takes tokens: also those that another middleware retries, and not those
/// that a cache answers. reqwest follows redirects beneath all middleware, so a redirected request takes tokens once. If the third
/// party counts each of its requests, turn redirects off in the client.
///
/// The time-outs of the client begin when a request is sent, after the wait.
#[derive(Clone)]
#[must_use = "it limits nothing until it is part of a client: ClientBuilder::with"]
pub struct OutgoingLimits {
    pub(super) limiter: Limiter,
    items: Vec<Item>,
    choose_items: Vec<ChooseItems>,
    choose_gate: Option<ChooseGate>,
    /// Whether each gate is that of a partition of the third party's quota.
    gate_is_of_partition: bool,
    pub(super) pause_for: Option<PauseFor>,
    pub(super) x_ratelimit: bool,
    /// The statuses that are refusals if they come with a time, besides 429 and 503.
    pub(super) refusals: Vec<StatusCode>,
    pub(super) repeat_if: Option<Predicate>,
    pub(super) max_wait: Duration,
    pub(super) max_retries: u32,
    pub(super) default_pause: Duration,
    pub(super) min_pause: Duration,
    pub(super) max_pause: Duration,
    pub(super) on_failure: OnFailure,
}

/// The limits of one request.
pub(super) struct RequestLimits {
    /// All limits, and the gate.
    pub(super) items: Vec<Item>,
    /// The gate that a pause blocks.
    pub(super) gate: Option<Item>,
    pub(super) gate_is_of_partition: bool,
}

impl OutgoingLimits {
    /// Creates a middleware without limits.
    pub fn new(limiter: Limiter) -> Self {
        Self {
            limiter,
            items: Vec::new(),
            choose_items: Vec::new(),
            choose_gate: None,
            gate_is_of_partition: false,
            pause_for: None,
            x_ratelimit: false,
            refusals: Vec::new(),
            repeat_if: None,
            max_wait: Duration::from_secs(30),
            max_retries: 3,
            default_pause: Duration::from_secs(1),
            min_pause: Duration::from_secs(1),
            max_pause: Duration::from_secs(3600),
            on_failure: OnFailure::default(),
        }
    }

    /// Adds a limit that every request takes tokens from: one, or the [count](Item::count) of the item.
    ///
    /// # Errors
    /// [`Error::Invalid`] if the limit is not defined, can never grant the count, or is a
    /// [concurrency limit](crate::Limit::concurrency). To limit how many requests run at the same time, use
    /// [`Limiter::acquire`] around the request, until its body has been read.
    pub fn limit(mut self, item: impl Into<Item>) -> Result<Self, Error> {
        let item = item.into();
        Call::from(item.clone()).validate(Op::Limit, &self.limiter.limits())?;
        self.items.push(item);
        Ok(self)
    }

    /// Adds limits that a closure chooses for each request: none, one ([`Option`]) or several (an array or `Vec`). The count of an
    /// item is the cost of the request.
    ///
    /// ```
    /// use pg_limiter::Item;
    /// use pg_limiter::outgoing::OutgoingLimits;
    ///
    /// # fn f(limiter: pg_limiter::Limiter) {
    /// let outgoing = OutgoingLimits::new(limiter).limit_by(|request| {
    ///     let size = request.body().and_then(|body| body.as_bytes()).map_or(0, <[u8]>::len);
    ///     let host = request.url().host_str().unwrap_or_default();
    ///     [Item::new("requests_per_host", host), Item::new("bytes_per_host", host).count(size as u64)]
    /// });
    /// # }
    /// ```
    ///
    /// A limit that is not defined, and a count that the limit can never grant within [`max_wait`](Self::max_wait), fail the
    /// request with [`Error::Invalid`].
    pub fn limit_by<I>(mut self, choose: impl Fn(&Request) -> I + Send + Sync + 'static) -> Self
    where
        I: IntoIterator<Item = Item>,
    {
        self.choose_items.push(Arc::new(move |request| choose(request).into_iter().collect()));
        self
    }

    /// Sets the gate that is blocked for as long as the third party demands. Every request waits for its end. A second call,
    /// [`gate_by`](Self::gate_by) or [`gate_by_partition`](Self::gate_by_partition) replaces it.
    ///
    /// Without a gate, the middleware neither pauses nor retries. To wait for a gate that only your own program blocks, add it with
    /// [`limit`](Self::limit).
    ///
    /// # Errors
    /// [`Error::Invalid`] if the limit is not defined or is not a [gate](crate::Limit::gate).
    pub fn gate(self, item: impl Into<Item>) -> Result<Self, Error> {
        let item = item.into();
        Resolved::gate(Op::Check, item.clone(), &self.limiter.limits(), None)?;
        Ok(self.gate_by(move |_| Some(item.clone())))
    }

    /// Sets a closure that chooses the gate of each request: for example one for each host, or for each account at the third party.
    /// A request for which it returns `None` has no gate.
    ///
    /// ```
    /// use pg_limiter::Item;
    /// use pg_limiter::outgoing::OutgoingLimits;
    ///
    /// # fn f(limiter: pg_limiter::Limiter) {
    /// let outgoing = OutgoingLimits::new(limiter)
    ///     .gate_by(|request| Some(Item::new("pause_per_host", request.url().host_str()?)));
    /// # }
    /// ```
    ///
    /// A limit that is not defined or is not a gate fails the request with [`Error::Invalid`].
    pub fn gate_by(mut self, choose: impl Fn(&Request) -> Option<Item> + Send + Sync + 'static) -> Self {
        self.choose_gate = Some(Arc::new(choose));
        self.gate_is_of_partition = false;
        self
    }

    /// Like [`gate_by`](Self::gate_by), for a third party that divides its quota into partitions: for example one for each account
    /// or region. Its field `RateLimit` then has members with a partition key (`pk`). The closure returns the gate of the
    /// request's partition.
    ///
    /// ```
    /// use pg_limiter::Item;
    /// use pg_limiter::outgoing::OutgoingLimits;
    ///
    /// # fn f(limiter: pg_limiter::Limiter) {
    /// // The third party limits each of our tenants.
    /// let outgoing = OutgoingLimits::new(limiter).gate_by_partition(|request| {
    ///     let tenant = request.headers().get("x-tenant")?.to_str().ok()?;
    ///     Some(Item::new("pause_per_tenant", tenant))
    /// });
    /// # }
    /// ```
    ///
    /// A member with `pk` blocks this gate. With the other gates, such a member counts only if the response is a
    /// [refusal](crate::outgoing#retries): a successful response that exhausts one partition must not stop the requests of all
    /// others.
    pub fn gate_by_partition(self, choose: impl Fn(&Request) -> Option<Item> + Send + Sync + 'static) -> Self {
        Self { gate_is_of_partition: true, ..self.gate_by(choose) }
    }

    /// Sets a closure that reads how long clients must pause, for a third party with header fields of its own. If it returns `None`,
    /// the [standard fields](crate::outgoing#pauses) are read. A second call replaces it.
    ///
    /// ```
    /// use std::time::Duration;
    /// use pg_limiter::outgoing::OutgoingLimits;
    ///
    /// # fn f(limiter: pg_limiter::Limiter) {
    /// // This API sends what is left, and the time until more arrives, in seconds with a fraction.
    /// let outgoing = OutgoingLimits::new(limiter).pause_for(|response| {
    ///     let number = |name| response.headers().get(name)?.to_str().ok()?.parse::<f64>().ok();
    ///     if number("x-quota-left")? >= 1.0 {
    ///         return None;
    ///     }
    ///     Duration::try_from_secs_f64(number("x-quota-reset-after")?).ok()
    /// });
    /// # }
    /// ```
    ///
    /// The closure only reads a time. It makes no response a [refusal](crate::outgoing#retries), except a 503, where the time
    /// counts like `Retry-After`: see [`refuses_with`](Self::refuses_with). [`min_pause`](Self::min_pause) and
    /// [`max_pause`](Self::max_pause) apply to its time.
    pub fn pause_for(mut self, read: impl Fn(&Response) -> Option<Duration> + Send + Sync + 'static) -> Self {
        self.pause_for = Some(Arc::new(read));
        self
    }

    /// Also reads the fields `X-RateLimit-Remaining` and `X-RateLimit-Reset` (default: they are ignored). If nothing remains, the
    /// gate is blocked until the reset: a number of seconds, or a time in seconds or milliseconds since 1970. So is a
    /// `RateLimit-Reset` then.
    ///
    /// Services disagree on the meaning of these fields. Check that your third party sends its next reset there, and not, for
    /// example, the length of its window.
    pub const fn x_ratelimit(mut self) -> Self {
        self.x_ratelimit = true;
        self
    }

    /// Also treats this status as a [refusal](crate::outgoing#retries), if the response states a time: it has a `Retry-After`, it
    /// reports that no quota is left, or [`pause_for`](Self::pause_for) returns a time. Each call adds a status.
    ///
    /// Some services respond with 403 to requests beyond a limit, and also to requests that are forbidden. Without a time, the
    /// response neither pauses nor is the request repeated. GitHub is such a service:
    ///
    /// ```
    /// use std::time::Duration;
    /// use pg_limiter::outgoing::OutgoingLimits;
    /// use reqwest::StatusCode;
    ///
    /// # fn f(limiter: pg_limiter::Limiter) -> Result<(), pg_limiter::Error> {
    /// let outgoing = OutgoingLimits::new(limiter)
    ///     .gate(("github_pause", "our-token"))?
    ///     .x_ratelimit()
    ///     .refuses_with(StatusCode::FORBIDDEN)
    ///     .default_pause(Duration::from_secs(60));
    /// # Ok(()) }
    /// ```
    ///
    /// The [guide](crate::guide::outgoing#github) explains each line.
    pub fn refuses_with(mut self, status: StatusCode) -> Self {
        self.refusals.push(status);
        self
    }

    /// Sets which refused requests may be repeated. A second call replaces it. Default: all, but after a 503 only those with an
    /// idempotent method.
    ///
    /// ```
    /// use pg_limiter::outgoing::OutgoingLimits;
    ///
    /// # fn f(limiter: pg_limiter::Limiter) {
    /// // The third party recognizes a request that it has processed before.
    /// let outgoing = OutgoingLimits::new(limiter)
    ///     .repeat_if(|request| request.method().is_idempotent() || request.headers().contains_key("idempotency-key"));
    /// # }
    /// ```
    ///
    /// Only refusals are repeated in any case, and only bodies that can be sent again.
    pub fn repeat_if(mut self, may_repeat: impl Fn(&Request) -> bool + Send + Sync + 'static) -> Self {
        self.repeat_if = Some(Arc::new(may_repeat));
        self
    }

    /// Sets how long a request waits at most (default: 30 s), for tokens and for the ends of pauses, over all of its retries. If it is
    /// zero, the request is sent at once or not at all. Values above 365 days mean 365 days.
    pub fn max_wait(mut self, max_wait: Duration) -> Self {
        self.max_wait = longest(max_wait);
        self
    }

    /// Sets how many times a request is retried (default: 3). A retry is another request: it takes tokens again.
    pub const fn max_retries(mut self, max_retries: u32) -> Self {
        self.max_retries = max_retries;
        self
    }

    /// Sets how long all processes pause after a 429 that does not state a time (default: 1 s). Zero does not pause: then such a
    /// response is retried at once, as far as the limits allow.
    pub const fn default_pause(mut self, pause: Duration) -> Self {
        self.default_pause = pause;
        self
    }

    /// Sets the shortest pause after a response that states a time (default: 1 s). Without it, a time of zero, or one that is in the
    /// past because clocks differ, would be followed by retries without a pause.
    pub const fn min_pause(mut self, min_pause: Duration) -> Self {
        self.min_pause = min_pause;
        self
    }

    /// Sets the longest pause that the third party can demand (default: 1 hour). Without such a bound, one wrong response would
    /// stop all requests for years. Values above 365 days mean 365 days.
    ///
    /// To end a pause early, call [`Limiter::unblock`]. Requests that already wait for its end go on to wait.
    pub fn max_pause(mut self, max_pause: Duration) -> Self {
        self.max_pause = longest(max_pause);
        self
    }

    /// Sets what to do with a request if there is no decision (default: [`OnFailure::Closed`]). Requests with an invalid limit or cost
    /// are not sent in either case.
    pub const fn on_failure(mut self, on_failure: OnFailure) -> Self {
        self.on_failure = on_failure;
        self
    }

    /// Returns the limits of a request. They are passed inline, so that its retries use the same limits.
    pub(super) fn of(&self, request: &Request) -> Result<RequestLimits, InvalidCall> {
        let limits = self.limiter.limits();
        let gate = self.choose_gate.as_ref().and_then(|choose| choose(request)).map(|gate| gate.pinned(&limits));
        if let Some(gate) = &gate {
            Resolved::gate(Op::Check, gate.clone(), &limits, None)?;
        }
        let chosen = self.choose_items.iter().flat_map(|choose| choose(request));
        let items = self.items.iter().cloned().chain(chosen).map(|item| item.pinned(&limits));
        let items = gate.clone().into_iter().chain(items).collect();
        Ok(RequestLimits { items, gate, gate_is_of_partition: self.gate_is_of_partition })
    }
}

impl fmt::Debug for OutgoingLimits {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("OutgoingLimits")
            .field("items", &self.items)
            .field("max_wait", &self.max_wait)
            .field("max_retries", &self.max_retries)
            .field("default_pause", &self.default_pause)
            .field("min_pause", &self.min_pause)
            .field("max_pause", &self.max_pause)
            .field("x_ratelimit", &self.x_ratelimit)
            .field("refusals", &self.refusals)
            .field("on_failure", &self.on_failure)
            .finish_non_exhaustive()
    }
}
