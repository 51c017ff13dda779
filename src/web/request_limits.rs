use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use http::{Response, StatusCode};
use sqlx::PgConnection;

use crate::call::{Call, Decision, Item, Permit};
use crate::error::Error;
use crate::limiter::Limiter;
use crate::web::answer::{Standing, set_retry_after};
use crate::web::layer::Rules;
use crate::web::note;

/// The limits and keys of one request, for a handler that limits in its own transaction
/// ([`enforce_within`](Self::enforce_within)): what it writes and what it is charged commit or roll back together, as no layer
/// can have it. A handler without a transaction calls [`enforce`](Self::enforce).
///
/// A [`RateLimitLayer`](crate::web::RateLimitLayer) with [`in_handler`](crate::web::RateLimitLayer::in_handler) puts one
/// among the extensions of each request; with axum it is an extractor. Clones belong to the same request.
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
///     limits.enforce_within(&mut tx).await?; // late: its rows stay locked until the commit
///     tx.commit().await?;
///     Ok("ordered")
/// }
///
/// let layer = RateLimitLayer::new(limiter.clone()).limit("orders", HeaderKey::new("x-account")?)?.in_handler();
/// let app: Router = Router::new().route("/orders", post(order).layer(layer)).with_state(limiter);
/// # Ok(()) }
/// ```
#[derive(Clone)]
#[must_use = "nothing is limited unless the handler asks: enforce() or enforce_within() it"]
pub struct RequestLimits {
    rules: Arc<Rules>,
    items: Vec<Item>,
    told: Arc<Mutex<Told>>,
}

/// For a request without limits.
const UNLIMITED: Permit = Permit { wait: None, remaining: f64::INFINITY };

/// What was decided last, for the response.
#[derive(Default)]
struct Told {
    /// Whether the handler asked, or said that it will not.
    asked: bool,
    standings: Vec<Standing>,
    retry_after: Option<Duration>,
}

impl RequestLimits {
    pub(super) fn new(rules: Arc<Rules>, items: Vec<Item>) -> Self {
        Self { rules, items, told: Arc::default() }
    }

    /// The limits, keys and costs that the layer has found: none if the request is skipped, or if no limit applies.
    pub fn items(&self) -> &[Item] {
        &self.items
    }

    /// One more, for what only the handler knows: the room in the body of a message, say. All are charged or none is.
    pub fn and(mut self, item: impl Into<Item>) -> Self {
        self.items.push(item.into());
        self
    }

    /// The layer's limiter.
    pub fn limiter(&self) -> &Limiter {
        &self.rules.limiter
    }

    /// Nothing is charged for this request, and that is meant. Without this, a handler that succeeds and has not asked is
    /// taken for one that forgot to: that is traced, as an event of level ERROR.
    pub fn waive(&self) {
        self.lock().asked = true;
    }

    fn lock(&self) -> MutexGuard<'_, Told> {
        self.told.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes the tokens in the caller's transaction, and tells the layer what was decided, for the fields of the response.
    /// Without items, there is a permit at once. As all limits [within](crate::Within) a transaction, late is best.
    ///
    /// In [shadow mode](crate::web::RateLimitLayer::shadow), a denial is counted and traced, and a permit.
    ///
    /// # Errors
    /// [`Error::Denied`], and those of [`Within`](crate::Within). Return it and roll back;
    /// [`error_response`](crate::web::error_response) makes the response of it, and with axum it is one. Failures of the database
    /// are errors whatever [`OnFailure`](crate::web::OnFailure) or shadow mode say: the transaction has failed with them.
    ///
    /// # Cancel safety
    /// As for [`Within`](crate::Within).
    ///
    /// # In a transaction
    /// Part of the caller's, as all calls [within](crate::Within) one.
    pub async fn enforce_within(&self, connection: &mut PgConnection) -> Result<Permit, Error> {
        if self.items.is_empty() {
            return Ok(UNLIMITED);
        }
        self.lock().asked = true;
        let call = Call::from(self.items.clone());
        let decision = self.rules.limiter.within(connection).limit(call).await?;
        self.permit(decision)
    }

    /// Takes the tokens in the limiter's own transaction, for a handler that has none. The layer puts the decision into the fields
    /// of the response. The tokens stay spent whatever becomes of the request. Without items, it returns a permit at once.
    ///
    /// It does what the layer does before a handler, at the moment that the handler chooses, and with the items that the handler
    /// [adds](Self::and):
    ///
    /// ```
    /// # #[cfg(feature = "axum")]
    /// # mod app {
    /// use pg_limiter::web::RequestLimits;
    ///
    /// async fn search(limits: RequestLimits, query: String) -> Result<String, pg_limiter::Error> {
    ///     if query.is_empty() {
    ///         limits.waive(); // Nothing to search for costs nothing.
    ///         return Ok(String::new());
    ///     }
    ///     limits.enforce().await?; // A denial is a 429 with the fields of the layer.
    ///     Ok(format!("results for {query}"))
    /// }
    /// # }
    /// ```
    ///
    /// In [shadow mode](crate::web::RateLimitLayer::shadow), a denial is counted and traced, and a permit. A failure of the
    /// database is an error, or with [`OnFailure::Open`](crate::web::OnFailure::Open) or in shadow mode a permit, which has an
    /// infinite `remaining`; that is traced.
    ///
    /// # Errors
    /// [`Error::Denied`], and those of [`Limiter`]; [`error_response`](crate::web::error_response) makes the response of it, and
    /// with axum it is one.
    ///
    /// # Cancel safety
    /// Safe: the tokens are taken or they are not, never in part. Count them as spent.
    ///
    /// # In a transaction
    /// In one of the limiter's own: it stays, whatever becomes of the caller's. [`enforce_within`](Self::enforce_within) has the
    /// same for the caller's.
    pub async fn enforce(&self) -> Result<Permit, Error> {
        if self.items.is_empty() {
            return Ok(UNLIMITED);
        }
        self.lock().asked = true;
        match self.rules.limiter.limit(self.items.clone()).await {
            Ok(decision) => self.permit(decision),
            Err(error) if self.rules.lets_through(&error) => Ok(UNLIMITED),
            Err(error) => Err(error),
        }
    }

    /// Keeps the decision for the fields of the response.
    fn permit(&self, decision: Decision) -> Result<Permit, Error> {
        let standings = self.rules.note(&self.rules.limits(&self.items), &decision);
        if self.rules.shadow {
            return Ok(Permit { wait: None, remaining: decision.remaining() });
        }
        *self.lock() = Told { asked: true, standings, retry_after: decision.retry_after() };
        decision.enforce()
    }

    /// Puts what was decided into the response.
    pub(super) fn tell<B>(&self, response: &mut Response<B>) {
        let told = self.lock();
        if !told.asked && !self.items.is_empty() && response.status().is_success() {
            note::not_asked(&self.items);
        }
        // A handler that makes a 429 of its own need not think of it.
        if let Some(retry_after) = told.retry_after.filter(|_| response.status() == StatusCode::TOO_MANY_REQUESTS) {
            set_retry_after(response.headers_mut(), retry_after);
        }
        self.rules.tell(response.headers_mut(), &told.standings);
    }
}

impl fmt::Debug for RequestLimits {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RequestLimits").field("items", &self.items).finish_non_exhaustive()
    }
}
