//! Extractors for the keys of a request.

mod extractor;
mod header;
mod key_fn;
mod missing;
mod path;
mod stored;

pub use extractor::{KeyExtractor, NoKey};
pub use header::HeaderKey;
pub use key_fn::{KeyFn, key_fn};
pub use missing::{Or, OrShared, OrUnlimited};
pub use path::PathKey;
pub use stored::{StoredKeys, stored_keys};

pub(super) use stored::storable;
