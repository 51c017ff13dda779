//! The stored form of keys.

use std::collections::HashSet;

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use sha2::{Digest, Sha256};

use crate::call::{Key, LONGEST_KEY};
use crate::web::address::keys_of_client;

/// Begins the stored form of a key that is too long.
const HASHED: &str = "sha256:";

/// Returns the key as the layer stores it. A key of more than 1024 bytes becomes its hash, and so does one that begins as a hash
/// does: otherwise a client could send the hash of another client's key. Any other key is stored as it is.
pub(in crate::web) fn storable(key: Key) -> Key {
    let text = key.as_str();
    if text.len() <= LONGEST_KEY && !text.starts_with(HASHED) {
        return key;
    }
    format!("{HASHED}{}", URL_SAFE_NO_PAD.encode(Sha256::digest(text))).into()
}

/// The prefixes of [`Or`](crate::web::Or), for up to three alternatives.
const ALTERNATIVES: [&str; 7] = ["", "1:", "2:", "1:1:", "1:2:", "2:1:", "2:2:"];

/// The keys under which layers may have stored what an operator knows as one key. Returned by [`stored_keys`].
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct StoredKeys {
    /// The key as a layer stores it: for an address in any form, that of a [`ClientAddress`](crate::web::ClientAddress) without
    /// settings; for a key of more than 1024 bytes, its hash; any other key as given.
    pub usual: Key,
    /// The other forms, the most likely ones first: the key as given; the keys with the prefixes of
    /// [`KeyExtractor::or`](crate::web::KeyExtractor::or), for up to three alternatives; and the networks of an address, of every
    /// length.
    pub others: Vec<Key>,
}

/// Returns the keys under which layers may have stored a key, for tools of operators: they know a client's address, and not
/// how a layer counts it.
///
/// ```
/// let keys = pg_limiter::web::stored_keys("2001:db8::1");
/// assert_eq!(keys.usual, "2001:db8::/64".into());
/// assert_eq!(keys.others[..2], ["2001:db8::1".into(), "1:2001:db8::/64".into()]);
/// ```
pub fn stored_keys(key: &str) -> StoredKeys {
    let (client, networks) = keys_of_client(key).unzip();
    let prefixed = |form: &str| ALTERNATIVES.map(|prefix| storable(format!("{prefix}{form}").into()));
    let given = (key.len() <= LONGEST_KEY).then(|| Key::from(key));
    let likely: Vec<Key> = client.iter().flat_map(|client| prefixed(client)).chain(prefixed(key)).collect();
    let usual = client.map_or_else(|| given.clone().unwrap_or_else(|| storable(key.into())), Key::from);
    let mut others: Vec<Key> = Vec::new();
    let mut known = HashSet::from([usual.clone()]);
    let networks = networks.unwrap_or_default();
    for form in given.into_iter().chain(likely).chain(networks.iter().flat_map(|network| prefixed(network))) {
        if known.insert(form.clone()) {
            others.push(form);
        }
    }
    StoredKeys { usual, others }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The hash is that of `python3 -c 'hashlib.sha256(b"k" * 1025)'`.
    #[test]
    fn only_long_keys_and_keys_that_look_like_hashes_are_hashed() {
        let stored = |key: &str| storable(key.into()).as_str().to_owned();
        for short in ["", "u1", &"k".repeat(1024), "sha256", "SHA256:x", "1:sha256:x"] {
            assert_eq!(stored(short), short);
        }
        let long = stored(&"k".repeat(1025));
        assert_eq!(long, "sha256:ARzI3K3iT0PS1_lWBdhIHaHQuGR13vSb4Cv8IM7obmU");
        assert_ne!(stored(&long), long, "a client that sends the stored form gets another key");
        assert_ne!(stored(&"k".repeat(1026)), long);
    }

    #[test]
    fn operators_find_the_stored_form_of_a_key() {
        let text = |keys: &[Key]| keys.iter().map(|key| key.as_str().to_owned()).collect::<Vec<_>>();
        let plain = stored_keys("u1");
        assert_eq!(plain.usual, "u1".into());
        assert_eq!(text(&plain.others), ["1:u1", "2:u1", "1:1:u1", "1:2:u1", "2:1:u1", "2:2:u1"]);
        let ipv6 = stored_keys("2001:db8::1");
        assert_eq!(ipv6.usual, "2001:db8::/64".into());
        assert_eq!(text(&ipv6.others)[..3], ["2001:db8::1", "1:2001:db8::/64", "2:2001:db8::/64"]);
        for form in ["2:2001:db8::/48", "1:2:2001:db8::1", "2001:db8::/127"] {
            assert!(ipv6.others.contains(&form.into()), "{form}");
        }
        let mapped = stored_keys("::ffff:203.0.113.7");
        assert_eq!((mapped.usual, text(&mapped.others)[0].as_str()), ("203.0.113.7".into(), "::ffff:203.0.113.7"));
        let long = "/a".repeat(600);
        let hash = |text: String| storable(text.into());
        let stored = stored_keys(&long);
        assert_eq!((stored.usual, &stored.others[0]), (hash(long.clone()), &hash(format!("1:{long}"))));
        let hashed = hash(long);
        assert_eq!(stored_keys(hashed.as_str()).usual, hashed, "the stored form is found, too");
        // A path fits, and no longer with the prefix of an alternative.
        let nearly = "/".repeat(1023);
        let stored = stored_keys(&nearly);
        assert_eq!((stored.usual, &stored.others[0]), (nearly.as_str().into(), &hash(format!("1:{nearly}"))));
    }
}
