use std::time::{Duration, Instant, SystemTime};

use async_trait::async_trait;
use http::{Extensions, StatusCode};
use reqwest::{Request, Response};
use reqwest_middleware::{Error as MiddlewareError, Middleware, Next};

use crate::call::Item;
use crate::error::Error;
use crate::limiter::OnFailure;
use crate::observability::paused;
use crate::outgoing::log;
use crate::outgoing::outgoing_limits::{OutgoingLimits, RequestLimits};
use crate::outgoing::pause::Fields;

/// See [`outgoing`](crate::outgoing).
#[async_trait]
impl Middleware for OutgoingLimits {
    async fn handle(
        &self,
        mut request: Request,
        extensions: &mut Extensions,
        next: Next<'_>,
    ) -> Result<Response, MiddlewareError> {
        let limits = self.of(&request).map_err(|error| MiddlewareError::middleware(Error::from(error)))?;
        let deadline = self.limiter.clock().now() + self.max_wait;
        let mut retries = self.max_retries;
        self.admit(&limits, deadline).await.map_err(MiddlewareError::middleware)?;
        loop {
            let copy = if retries > 0 { request.try_clone() } else { None };
            let response = next.clone().run(request, extensions).await?;
            let Demand { pause, is_refusal } = self.demand(&limits, &response);
            let (Some(gate), Some(pause)) = (&limits.gate, pause) else { return Ok(response) };
            let Some(rest) = self.block(gate, pause, response.status()).await else { return Ok(response) };
            let left = self.left(deadline);
            match copy {
                Some(copy)
                    if is_refusal && rest <= left && !left.is_zero() && self.may_repeat(&copy, response.status()) =>
                {
                    request = copy;
                }
                _ => return Ok(response),
            }
            if let Err(error) = self.admit(&limits, deadline).await {
                log::not_retried(&error);
                return Ok(response);
            }
            retries -= 1;
        }
    }
}

/// The demands of a response.
struct Demand {
    /// How long all requests must pause.
    pause: Option<Duration>,
    /// Whether the response says that the request was refused because of a limit.
    is_refusal: bool,
}

impl OutgoingLimits {
    fn left(&self, deadline: Instant) -> Duration {
        deadline.saturating_duration_since(self.limiter.clock().now())
    }

    /// Waits until the limits allow the request, and takes its tokens.
    async fn admit(&self, limits: &RequestLimits, deadline: Instant) -> Result<(), Error> {
        if limits.items.is_empty() {
            return Ok(());
        }
        match self.limiter.until_ready(limits.items.clone(), self.left(deadline)).await {
            Ok(decision) => decision.enforce().map(drop),
            // The program is wrong, not the database.
            Err(error @ (Error::Invalid(_) | Error::InvalidLimit(_))) => Err(error),
            Err(error) if self.on_failure == OnFailure::Open => {
                log::let_through(&error);
                Ok(())
            }
            Err(error) => Err(error),
        }
    }

    /// Reads what the response demands.
    fn demand(&self, limits: &RequestLimits, response: &Response) -> Demand {
        let status = response.status();
        let is_too_many = status == StatusCode::TOO_MANY_REQUESTS;
        let is_configured = self.refusals.contains(&status);
        let fields = Fields {
            headers: response.headers(),
            now: SystemTime::now(),
            // A refusal is about the partition of its request.
            partitions: limits.gate_is_of_partition || is_too_many || is_configured,
            x_ratelimit: self.x_ratelimit,
        };
        let is_unavailable = status == StatusCode::SERVICE_UNAVAILABLE;
        let told = self
            .pause_for
            .as_ref()
            .and_then(|read| read(response))
            .or_else(|| (is_too_many || is_unavailable || is_configured).then(|| fields.retry_after()).flatten());
        let is_told = told.is_some();
        let pause = told
            .or_else(|| fields.until_reset())
            .map(|pause| pause.max(self.min_pause))
            .or(is_too_many.then_some(self.default_pause));
        let is_refusal = is_too_many || (is_unavailable && is_told) || (is_configured && pause.is_some());
        Demand { pause: pause.map(|pause| self.cut(pause)), is_refusal }
    }

    /// Whether a refused request may be sent again. The server may have begun to process it, if the error is the server's.
    fn may_repeat(&self, request: &Request, refusal: StatusCode) -> bool {
        match &self.repeat_if {
            Some(repeat_if) => repeat_if(request),
            None => !refusal.is_server_error() || request.method().is_idempotent(),
        }
    }

    /// Returns the pause within its bound, in whole microseconds.
    fn cut(&self, pause: Duration) -> Duration {
        if pause > self.max_pause {
            log::cut(pause, self.max_pause);
        }
        let micros = pause.min(self.max_pause).as_nanos().div_ceil(1000);
        Duration::from_micros(u64::try_from(micros).unwrap_or(u64::MAX))
    }

    /// Blocks the gate, and returns the rest of its block. `None` if that failed.
    async fn block(&self, gate: &Item, pause: Duration, status: StatusCode) -> Option<Duration> {
        if pause.is_zero() {
            return Some(pause);
        }
        match self.limiter.block(gate.clone(), pause).await {
            Ok(rest) => {
                log::paused(gate.limit_name(), pause, status.as_u16());
                paused(&gate.limit.name);
                Some(rest)
            }
            Err(error) => {
                log::not_paused(gate.limit_name(), pause, &error);
                None
            }
        }
    }
}
