//! The SQL calls on a connection. Each is one statement in one round trip.

mod answer;
mod batch;
mod connect_options;
mod decide;
mod door;
mod forget;
mod gate;
mod idempotency;
mod pooled;
mod prune;
mod query;
pub(crate) mod queue;
mod schema;
mod schema_version;
mod server;
mod statement;
mod stored_limits;
mod window;
mod within;

pub use schema::{InvalidSchema, Schema};
pub use within::{TransactionLimiter, Within};

pub(crate) use within::reset_all_keys;

pub(crate) use answer::Answer;
pub(crate) use batch::{Batch, Bucket};
pub(crate) use connect_options::own_options;
pub(crate) use decide::{Alone, decide, decide_alone, flush, held};
pub(crate) use forget::{Forgetting, check_key};
pub(crate) use gate::{Blocking, Unblocking};
pub(crate) use idempotency::{KEEP_ANSWERS, Once, decide_once};
pub(crate) use pooled::PooledConnection;
pub(crate) use prune::{LastRow, PruneStep, prune, prune_answers};
pub(crate) use schema::{Deciding, SCHEMA_VERSION, Statements};
pub(crate) use schema_version::check_release;
pub(crate) use server::{detect, explain, is_read_only_by_default};
pub(crate) use statement::{NamedStatements, Sql};
pub(crate) use stored_limits::stored_limits_file;
pub(crate) use window::{PresentWindow, ReadWindow};
