//! The workloads, and what all of them share.

pub(crate) const ENQUEUE: &str = "enqueue";
pub(crate) const ENQUEUE_ONE_GROUP: &str = "enqueue_one_group";
pub(crate) const ENQUEUE_100: &str = "enqueue_100";
pub(crate) const ENQUEUE_TRANSACTION: &str = "enqueue_transaction";
pub(crate) const WORK: &str = "work";
pub(crate) const WORK_ONE_GROUP: &str = "work_one_group";
pub(crate) const DELAYS: &str = "delays";

/// Runs only if it is named, because it takes long.
pub(crate) const CHURN: &str = "churn";

/// All workloads of a round, in order.
pub(crate) const WORKS: [&str; 7] =
    [ENQUEUE, ENQUEUE_ONE_GROUP, ENQUEUE_100, ENQUEUE_TRANSACTION, WORK, WORK_ONE_GROUP, DELAYS];

/// The number of concurrent callers that enqueue.
pub(crate) const CALLERS: usize = 32;

/// The number of concurrent jobs.
pub(crate) const CONCURRENCY: usize = 8;

/// A limit with enough tokens that no job waits.
pub(crate) const FREE: &str = "free";
/// A limit that makes jobs wait.
pub(crate) const PACED: &str = "paced";
