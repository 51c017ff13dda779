/// How much was deleted about a key: see [`Limiter::forget`](crate::Limiter::forget).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Forgotten {
    /// The rows of buckets that were deleted. A bucket with shards has several.
    pub buckets: u64,
    /// The jobs that were deleted. Those that had not started returned their tokens.
    pub jobs: u64,
    /// The jobs of the key that are running. They stay: call `forget` again once they have ended.
    pub running: u64,
    /// The stored answers that were deleted.
    pub answers: u64,
}
