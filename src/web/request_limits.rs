use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use http::{Extensions, Response};
use sqlx::PgConnection;

use crate::call::{Call, Decision, Item, LeaseId, Permit};
use crate::error::Error;
use crate::limiter::{Lease, Limiter};
use crate::web::answer::{Standing, is_denial, is_success, set_retry_after};
use crate::web::layer::{Held, Rules, Trial, is_of_slots, limits};
use crate::web::log;

/// The limits and keys of one request, for a handler that charges them itself.
///
/// With [`enforce_within`](Self::enforce_within), the tokens and the handler's own writes commit or roll back together. A
/// handler without a transaction calls [`enforce`](Self::enforce).
///
/// A [`RateLimitLayer`](crate::web::RateLimitLayer) with [`in_handler`](crate::web::RateLimitLayer::in_handler) inserts one
/// into the extensions of each request. With axum it is an extractor. Clones belong to the same request.
///
/// ```no_run
/// # #[cfg(feature = "axum")]
/// # fn f(limiter: pg_limiter::Limiter) -> Result<(), Box<dyn std::error::Error>> {
/// use axum::response::{IntoResponse, Response};
/// use axum::{Router, extract::State, routing::post};
/// use pg_limiter::Limiter;
/// use pg_limiter::web::{HeaderKey, RateLimitLayer, RequestLimits};
///
/// #[derive(Debug, thiserror::Error)]
/// #[error(transparent)]
/// enum AppError {
///     Limit(#[from] pg_limiter::Error),
///     Database(#[from] sqlx::Error),
/// }
///
/// impl IntoResponse for AppError {
///     fn into_response(self) -> Response {
///         match self {
///             Self::Limit(error) => error.into_response(),
///             Self::Database(_) => axum::http::StatusCode::INTERNAL_SERVER_ERROR.into_response(),
///         }
///     }
/// }
///
/// async fn order(State(limiter): State<Limiter>, limits: RequestLimits) -> Result<&'static str, AppError> {
///     let mut tx = limiter.pool().begin().await?;
///     sqlx::query("INSERT INTO orders DEFAULT VALUES").execute(&mut *tx).await?;
///     limits.enforce_within(&mut tx).await?; // late: the rows of the limits stay locked until the commit
///     tx.commit().await?;
///     Ok("ordered")
/// }
///
/// let layer = RateLimitLayer::new(limiter.clone()).limit("orders", HeaderKey::new("x-account")?)?.in_handler();
/// let app: Router = Router::new().route("/orders", post(order).layer(layer)).with_state(limiter);
/// # Ok(()) }
/// ```
#[derive(Clone)]
#[must_use = "nothing is limited unless the handler calls enforce() or enforce_within()"]
pub struct RequestLimits {
    rules: Arc<Rules>,
    items: Vec<Item>,
    state: Arc<Mutex<ResponseState>>,
    /// The slots and tokens that the request has taken. Not held here: the extensions of a request may live longer than it.
    held: Weak<Held>,
}

/// The permit of a request without limits.
const UNLIMITED: Permit = Permit { wait: None, remaining: f64::INFINITY };

/// The last decision, for the fields of the response.
#[derive(Default)]
struct ResponseState {
    /// Whether the handler has charged or waived its limits.
    charged: bool,
    standings: Vec<Standing>,
    retry_after: Option<Duration>,
}

impl RequestLimits {
    pub(super) fn new(rules: Arc<Rules>, items: Vec<Item>, held: &Arc<Held>) -> Self {
        Self { rules, items, state: Arc::default(), held: Arc::downgrade(held) }
    }

    /// Finds the limits of a request in its extensions, in a handler without an extractor for them: of tonic, or of a tower
    /// service.
    ///
    /// ```no_run
    /// # #[cfg(feature = "tonic")]
    /// # mod app {
    /// use pg_limiter::web::RequestLimits;
    /// use tonic::{Request, Response, Status};
    ///
    /// async fn search(request: Request<String>) -> Result<Response<String>, Status> {
    ///     RequestLimits::of(request.extensions())?.enforce().await?;
    ///     Ok(Response::new(format!("results for {}", request.get_ref())))
    /// }
    /// # }
    /// ```
    ///
    /// # Errors
    /// [`NoRequestLimits`] if no layer with [`in_handler`](crate::web::RateLimitLayer::in_handler) wraps the handler.
    pub fn of(extensions: &Extensions) -> Result<Self, NoRequestLimits> {
        extensions.get().cloned().ok_or(NoRequestLimits)
    }

    /// The limits, keys and costs of this request. Empty if the request is skipped, or if no limit applies.
    pub fn items(&self) -> &[Item] {
        &self.items
    }

    /// Adds an item that only the handler knows, for example a chat room named in the body. All items are charged, or none.
    pub fn and(mut self, item: impl Into<Item>) -> Self {
        self.items.push(item.into());
        self
    }

    /// The limiter of the layer.
    pub fn limiter(&self) -> &Limiter {
        &self.rules.limiter
    }

    /// States that this request is intentionally charged nothing. Without this, a handler that succeeds without charging its
    /// limits is reported as a bug, with an event of level ERROR.
    pub fn waive(&self) {
        self.lock().charged = true;
    }

    fn lock(&self) -> MutexGuard<'_, ResponseState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes the tokens in the caller's transaction. The layer adds the decision to the fields of the response. Call this late
    /// in the transaction, because the rows of the limits stay locked until it ends. If there are no items, returns a permit
    /// at once.
    ///
    /// It also takes the slots of [concurrency limits](crate::Limit::concurrency), under a lease that the layer renews, and
    /// releases when the response has been sent. Others see them as taken from the commit on. If the transaction rolls back, there
    /// is no lease. To hold slots while the handler works, call [`enforce`](Self::enforce) before the transaction.
    ///
    /// In [shadow mode](crate::web::RateLimitLayer::shadow), a denial is counted and logged, and a permit is returned.
    ///
    /// # Errors
    /// [`Error::Denied`], and the errors of [`Within`](crate::Within). Return the error and roll back.
    /// [`error_response`](crate::web::error_response) turns it into a response; with axum it is one. A failure of the database
    /// is an error even with [`OnFailure::Open`](crate::web::OnFailure::Open) or in shadow mode, because the transaction has
    /// failed.
    ///
    /// # Cancel safety
    /// Not safe. The statement may still run on the server, so roll the transaction back.
    ///
    /// # In a transaction
    /// Runs in the caller's transaction, and commits or rolls back with it: see [`Within`](crate::Within).
    pub async fn enforce_within(&self, connection: &mut PgConnection) -> Result<Permit, Error> {
        if self.items.is_empty() {
            return Ok(UNLIMITED);
        }
        self.lock().charged = true;
        let (enforced, tried) = self.rules.divide(&self.items);
        let permit = if enforced.is_empty() {
            UNLIMITED
        } else {
            let decision = self.take_within(connection, enforced.clone()).await?;
            self.permit(&enforced, decision)?
        };
        let mut is_denied = false;
        for item in tried {
            match self.take_within(connection, vec![item.clone()]).await {
                Ok(decision) => {
                    self.rules.note_tried(item.limit_name(), &decision);
                    is_denied |= decision.is_denied();
                }
                // Nothing was sent, so the transaction has not failed.
                Err(error @ Error::Invalid(_)) => log::let_through(&error, "shadow mode"),
                Err(error) => return Err(error),
            }
        }
        if is_denied {
            self.rules.count_shadow_denial();
        }
        Ok(permit)
    }

    /// Takes the tokens in the caller's transaction, and slots under a lease, which the request holds if the transaction commits.
    async fn take_within(&self, connection: &mut PgConnection, items: Vec<Item>) -> Result<Decision, Error> {
        let limiter = &self.rules.limiter;
        if !items.iter().any(is_of_slots) {
            return limiter.within(connection).limit(items).await;
        }
        let (id, asked) = (LeaseId::random(), limiter.clock().now());
        let call = Call::from(items).lease(id);
        let decision = limiter.within(connection).limit(call.clone()).await?;
        if !decision.is_denied() {
            self.keep(Vec::new(), Some(Lease::uncommitted(limiter, call, id, asked)?.keep_renewed()));
        }
        Ok(decision)
    }

    /// Keeps what was taken until the response has been sent.
    fn keep(&self, items: Vec<Item>, lease: Option<Lease>) {
        match self.held.upgrade() {
            Some(held) => held.add(items, lease),
            None => {
                let items = items.iter().filter(|item| self.rules.settles(item)).map(Item::limit_name);
                let slots = lease.iter().flat_map(Lease::slots).map(|name| &**name);
                log::taken_too_late(&items.chain(slots).collect::<Vec<_>>());
            }
        }
    }

    /// Takes the tokens in a transaction of the limiter's own, for a handler without a transaction. The layer adds the decision
    /// to the fields of the response. The tokens stay spent whatever happens to the request. If there are no items, returns a
    /// permit at once.
    ///
    /// It takes tokens and slots together, or nothing. The slots are held until the response has been sent, or longer with a
    /// [`RequestHold`](crate::web::RequestHold). A count of 0 takes no slot.
    ///
    /// Without [`in_handler`](crate::web::RateLimitLayer::in_handler), the layer does the same before the handler runs. Here
    /// the handler chooses the moment, and can [add](Self::and) items:
    ///
    /// ```
    /// # #[cfg(feature = "axum")]
    /// # mod app {
    /// use pg_limiter::web::RequestLimits;
    ///
    /// async fn search(limits: RequestLimits, query: String) -> Result<String, pg_limiter::Error> {
    ///     if query.is_empty() {
    ///         limits.waive(); // An empty query costs nothing.
    ///         return Ok(String::new());
    ///     }
    ///     limits.enforce().await?; // A denial becomes a 429 with the fields of the layer.
    ///     Ok(format!("results for {query}"))
    /// }
    /// # }
    /// ```
    ///
    /// In [shadow mode](crate::web::RateLimitLayer::shadow), a denial is counted and logged, and a permit is returned. After a
    /// failure of the database, [`OnFailure::Open`](crate::web::OnFailure::Open) and shadow mode also return a permit, with an
    /// infinite `remaining`, and log the failure.
    ///
    /// # Errors
    /// [`Error::Denied`], and the errors of [`Limiter`]. [`error_response`](crate::web::error_response) turns an error into a
    /// response; with axum it is one.
    ///
    /// # Cancel safety
    /// Safe: the tokens are taken or not, never in part. Count them as spent.
    ///
    /// # In a transaction
    /// Runs in a transaction of the limiter's own, which stays committed whatever happens to yours. In your transaction, call
    /// [`enforce_within`](Self::enforce_within).
    pub async fn enforce(&self) -> Result<Permit, Error> {
        if self.items.is_empty() {
            return Ok(UNLIMITED);
        }
        self.lock().charged = true;
        let (enforced, tried) = self.rules.divide(&self.items);
        let permit = if enforced.is_empty() {
            UNLIMITED
        } else {
            match self.rules.take(enforced.clone()).await {
                Ok((decision, lease)) => {
                    self.rules.learn_windows(&limits(&enforced)).await;
                    let is_denied = decision.is_denied();
                    let permit = self.permit(&enforced, decision)?;
                    if !is_denied {
                        self.keep(enforced, lease);
                    }
                    permit
                }
                Err(error) if self.rules.lets_through(&error) => return Ok(UNLIMITED),
                Err(error) => return Err(error),
            }
        };
        let trial = Trial::start(&self.rules, tried);
        if let Some(held) = self.held.upgrade() {
            held.add_trial(trial);
        }
        Ok(permit)
    }

    /// Stores the decision for the fields of the response, and enforces it.
    fn permit(&self, items: &[Item], decision: Decision) -> Result<Permit, Error> {
        let standings = self.rules.note(items, &decision);
        if self.rules.shadow {
            return Ok(Permit { wait: None, remaining: decision.remaining() });
        }
        let mut state = self.lock();
        (state.standings, state.retry_after) = (standings, decision.retry_after());
        decision.enforce()
    }

    /// Adds the decision to the fields of the response.
    pub(super) fn add_fields<B>(&self, response: &mut Response<B>) {
        let state = self.lock();
        if !state.charged && !self.items.is_empty() && is_success(response) {
            log::not_asked(&self.items);
        }
        // For handlers that create their own denial without it.
        if let Some(retry_after) = state.retry_after.filter(|_| is_denial(response)) {
            set_retry_after(response.headers_mut(), retry_after);
        }
        self.rules.add_fields(response, &state.standings);
    }
}

/// No layer with [`in_handler`](crate::web::RateLimitLayer::in_handler) wraps a handler that asks for its [`RequestLimits`].
///
/// As a response of axum it is 500, and as a status of tonic `INTERNAL`. Then the message is logged at level ERROR.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the handler asks for RequestLimits, but no RateLimitLayer with in_handler() wraps it; add one")]
#[non_exhaustive]
pub struct NoRequestLimits;

impl fmt::Debug for RequestLimits {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RequestLimits").field("items", &self.items).finish_non_exhaustive()
    }
}
