//! The address of a client.

mod client;
mod forwarded;
mod peer;
mod proxies;

pub use client::ClientAddress;
pub use peer::PeerAddress;
pub use proxies::{InvalidTrustedProxies, TrustedProxies};
