//! Keys that only the application can tell.

use std::fmt;
use std::sync::Arc;

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use hmac::{Hmac, KeyInit, Mac};
use sha2::Sha256;

use crate::call::Key;

/// Shorter ones could be found by trying all.
const SHORTEST: usize = 16;

/// A secret under which keys are stored: instead of the key, the database gets HMAC-SHA-256 of the limit's name and the
/// key (43 characters, base64url). Given in [`LimiterConfig::key_secret`](crate::LimiterConfig::key_secret), or to
/// [`RateLimits::with_key_secret`](crate::RateLimits::with_key_secret).
///
/// Who can read the database, a backup or a replica, but does not have the secret, cannot tell whose keys these are,
/// cannot find out whether somebody's key is among them, and cannot tell that two limits count the same one. How many
/// keys a limit has, and when and how much each is used, stays visible; so do the names of limits. The empty key, the
/// one shared bucket of a limit, stays empty.
///
/// # What has to agree
/// Processes that are to share balances need the same secret, and the tool takes it as `--key-secret-file`. Another
/// secret, or none, is another set of buckets, all of them full: to change it forgets every balance and every debt, and
/// what a queue has reserved. Rows under the old one go by pruning. The SQL functions, called by hand or from a
/// trigger, hash nothing.
///
/// # In a queue
/// Groups are hashed, too (whatever the limit, so that equal keys stay one group); a handler and the lists of jobs get
/// keys and groups as they are stored. What a handler has to know belongs into the payload, which is stored as it is,
/// and so is a unique id. Jobs of one group, and the keys that one job names, are seen to belong together.
///
/// ```
/// # fn f(pool: sqlx::PgPool, limits: pg_limiter::Limits) -> Result<(), Box<dyn std::error::Error>> {
/// use pg_limiter::{KeySecret, Limiter, LimiterConfig};
///
/// let mut config = LimiterConfig::default();
/// config.key_secret = Some(KeySecret::new(std::env::var("KEY_SECRET")?)?);
/// let limiter = Limiter::with_config(pool, limits, config);
/// # Ok(()) }
/// ```
#[derive(Clone)]
pub struct KeySecret {
    /// Ready to hash: the secret is not needed any more.
    keyed: Arc<Hmac<Sha256>>,
}

/// A secret of less than 16 bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the secret for keys has {bytes} bytes, and 16 at least are needed; take 32 random ones")]
#[non_exhaustive]
pub struct InvalidKeySecret {
    /// How many it has.
    pub bytes: usize,
}

impl KeySecret {
    /// A secret of these bytes: 16 at least, best 32 random ones. A text is taken as its bytes, whatever it encodes.
    ///
    /// # Errors
    /// [`InvalidKeySecret`] if there are less.
    pub fn new(secret: impl AsRef<[u8]>) -> Result<Self, InvalidKeySecret> {
        let secret = secret.as_ref();
        let invalid = InvalidKeySecret { bytes: secret.len() };
        if secret.len() < SHORTEST {
            return Err(invalid);
        }
        // It takes any length.
        let keyed = Hmac::new_from_slice(secret).map_err(|_| invalid)?;
        Ok(Self { keyed: Arc::new(keyed) })
    }

    /// The key of a limit as it is stored: to find or delete its rows with SQL of your own.
    pub fn stored_key(&self, limit: &str, key: &str) -> String {
        self.key(limit, key).as_ref().to_owned()
    }

    /// The key of a limit, as it is stored.
    pub(crate) fn key(&self, limit: &str, key: &str) -> Arc<str> {
        if key.is_empty() {
            return Arc::default();
        }
        let mut mac = Hmac::clone(&self.keyed);
        // No name holds a NUL: where it ends is clear.
        mac.update(limit.as_bytes());
        mac.update(&[0]);
        mac.update(key.as_bytes());
        URL_SAFE_NO_PAD.encode(mac.finalize().into_bytes()).into()
    }

    /// An idempotency key, as it is stored: no limit's name holds a NUL.
    pub(crate) fn idempotency_key(&self, key: &str) -> Arc<str> {
        self.key("\0", key)
    }

    /// A group of jobs, as it is stored: no limit has an empty name.
    pub(crate) fn group(&self, key: &Key) -> Key {
        Key(self.key("", &key.0))
    }
}

impl fmt::Debug for KeySecret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("KeySecret(..)")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// By another implementation: Python's `hmac.new(secret, name + b"\0" + key, "sha256")`.
    #[test]
    fn it_is_hmac_sha_256_of_the_name_a_nul_and_the_key() {
        let secret = KeySecret::new([0x0b; 20]).unwrap();
        assert_eq!(&*secret.key("send_message", "u1"), "jUzEQTDwTZNAzuoXsBaNUuxhZvSBvChKtCwFntYUv4E");
        assert_eq!(&*secret.group(&"u1".into()).0, "88PXuKEeRXLYG_JO9J0TsGmO6R33zoHzkPNGm67TnpE");
        let long = KeySecret::new([0xaa; 131]).unwrap();
        assert_eq!(&*long.key("send_message", "\u{e9}"), "UQ8eafkk38dAf85XJCWWwJgY004Hzu3MQR7T_LOXsd8");
    }

    /// RFC 4231, test case 1.
    #[test]
    fn the_hash_is_that_of_the_standard() {
        let mut mac = Hmac::clone(&KeySecret::new([0x0b; 20]).unwrap().keyed);
        mac.update(b"Hi There");
        let hash = mac.finalize().into_bytes().iter().map(|byte| format!("{byte:02x}")).collect::<String>();
        assert_eq!(hash, "b0344c61d8db38535ca8afceaf0bf12b881dc200c9833da726e9376c2e32cff7");
    }

    #[test]
    fn names_and_keys_do_not_run_together_and_the_empty_key_stays_empty() {
        let secret = KeySecret::new("sixteen bytes ok").unwrap();
        assert_ne!(secret.key("a", "bc"), secret.key("ab", "c"));
        assert_ne!(secret.key("a", "u1"), secret.key("b", "u1"));
        assert_ne!(secret.key("a", "u1"), KeySecret::new("sixteen bytes of").unwrap().key("a", "u1"));
        assert!(secret.key("a", "").is_empty() && secret.group(&"".into()).0.is_empty());
    }

    #[test]
    fn a_short_secret_is_refused_and_none_is_shown() {
        for bytes in [0, 1, 15] {
            assert_eq!(KeySecret::new(vec![7; bytes]).unwrap_err(), InvalidKeySecret { bytes });
        }
        assert_eq!(format!("{:?}", KeySecret::new("sixteen bytes ok").unwrap()), "KeySecret(..)");
    }
}
