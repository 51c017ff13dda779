//! The address of a client.

mod client;
mod forwarded;
mod networks;
mod peer;
mod proxies;

pub use client::ClientAddress;
pub use networks::{InvalidNetworks, Networks};
pub use peer::PeerAddress;
pub use proxies::TrustedProxies;
