//! Calls and decisions as values, without I/O.

mod balances;
mod call;
mod call_at;
mod decision;
mod forgotten;
mod invalid;
mod item;
mod key_secret;
mod lease_id;
mod resolved;

pub use balances::Balances;
pub use call::Call;
pub use call_at::CallAt;
pub use decision::{Decision, LimitState, Outcome, Permit};
pub use forgotten::Forgotten;
pub use invalid::InvalidCall;
pub use item::{Headroom, Item, Key, LimitRef};
pub(crate) use key_secret::is_hash;
pub use key_secret::{InvalidKeySecret, KeySecret};
pub use lease_id::LeaseId;
pub use resolved::Op;

pub(crate) use item::Hidden;
pub(crate) use resolved::{LONGEST_KEY, Resolved, ResolvedItem, check_name};
