//! Who is at the other end.

mod client;
mod hops;
mod peer;
mod proxies;

pub use client::ClientAddress;
pub use peer::PeerAddress;
pub use proxies::{InvalidTrustedProxies, TrustedProxies};
