/// How a web layer or a middleware treats a request without a decision: the database cannot be reached or has no schema, or too
/// many calls wait for it.
///
/// A request waits for up to the deadline of the limiter's [`RetryPolicy`](crate::RetryPolicy), 5 seconds by default, before
/// it is rejected or passed on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum OnFailure {
    /// Rejects the request: a web layer responds with 503, and a middleware returns the error and does not send the request.
    #[default]
    Closed,
    /// Passes the request on, and logs an event of level WARN. While the database is down, nothing is limited. If the outcome
    /// of a commit is unknown, tokens may have been taken.
    Open,
}
