//! The address of a client.

mod client;
mod embedded;
mod forms;
mod forwarded;
mod networks;
mod node;
mod peer;
mod proxies;
mod unreadable;

pub use client::ClientAddress;
pub use networks::{InvalidNetworks, Networks};
pub use peer::PeerAddress;
pub use proxies::TrustedProxies;
pub use unreadable::Unreadable;

pub(super) use forms::keys_of_client;
use unreadable::Reason;
