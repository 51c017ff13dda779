//! Transactions of the limiter's own: one statement each, retried after a conflict. The combiner, the limiter and the queue use them.

mod attempt;
mod kept;
mod notifications;
mod options;
mod session;
mod statement;
mod transactor;

pub use options::{Connections, Durability, Isolation};

pub(crate) use attempt::{Bounds, Failure, before};
pub(crate) use kept::Kept;
pub(crate) use notifications::Notifications;
pub(crate) use session::open as open_session;
pub(crate) use statement::{Decide, DecideOnce, LookForHeld, ResetAllKeys, Statement};
pub(crate) use transactor::{Transactor, exhausted};
