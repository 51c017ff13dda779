//! Stores keys as hashes that only the application can compute.

use std::fmt;
use std::sync::Arc;

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use hmac::{Hmac, KeyInit, Mac};
use sha2::Sha256;

use crate::call::Key;

/// Shorter secrets could be found by trying all of them.
const SHORTEST: usize = 16;

/// A secret for hashing keys. Instead of the key, the database stores HMAC-SHA-256 of the limit's name and the key
/// (43 characters, base64url). Set it in [`LimiterConfig::key_secret`](crate::LimiterConfig::key_secret), or with
/// [`TransactionLimiter::with_key_secret`](crate::TransactionLimiter::with_key_secret).
///
/// A person who can read the database, a backup or a replica, but does not have the secret, cannot recover a key, cannot
/// check whether a given key is stored, and cannot see that two limits count the same key. Still visible are the names of
/// limits, the number of keys of each limit, and when and how much each key is used. The empty key, which is the one shared
/// bucket of a limit, is not hashed.
///
/// # All processes need the same secret
/// Processes that share balances need the same secret. The tool reads it from `--key-secret-file`. With a different secret,
/// or none, keys map to different buckets, which are full. So changing the secret forgets all balances, debts and
/// reservations of queues. `prune` removes rows hashed with the old secret. The SQL functions, called by hand or from a
/// trigger, do not hash keys.
///
/// # In a queue
/// Groups are hashed, too, without the limit's name, so that equal keys stay in one group. Handlers and lists of jobs get the
/// stored (hashed) keys and groups. Put data that a handler needs into the payload. Payloads and unique ids are stored as
/// they are. It stays visible which jobs share a group, and which keys belong to one job.
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
    /// HMAC initialized with the secret, which need not be kept itself.
    keyed: Arc<Hmac<Sha256>>,
}

/// The key secret is shorter than 16 bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the key secret has {bytes} bytes, and at least 16 are required; use 32 random bytes")]
#[non_exhaustive]
pub struct InvalidKeySecret {
    /// The length of the secret.
    pub bytes: usize,
}

impl KeySecret {
    /// Creates a secret from at least 16 bytes. Use 32 random bytes. A text is used as its bytes, without decoding it.
    ///
    /// # Errors
    /// [`InvalidKeySecret`] if there are fewer than 16 bytes.
    pub fn new(secret: impl AsRef<[u8]>) -> Result<Self, InvalidKeySecret> {
        let secret = secret.as_ref();
        let invalid = InvalidKeySecret { bytes: secret.len() };
        if secret.len() < SHORTEST {
            return Err(invalid);
        }
        // HMAC accepts any length.
        let keyed = Hmac::new_from_slice(secret).map_err(|_| invalid)?;
        Ok(Self { keyed: Arc::new(keyed) })
    }

    /// Returns the stored form of a limit's key, to find or delete its rows with your own SQL.
    pub fn stored_key(&self, limit: &str, key: &str) -> String {
        self.key(limit, key).as_ref().to_owned()
    }

    /// The stored form of a limit's key.
    pub(crate) fn key(&self, limit: &str, key: &str) -> Arc<str> {
        if key.is_empty() {
            return Arc::default();
        }
        let mut mac = Hmac::clone(&self.keyed);
        // No name contains a NUL, so the NUL marks the end of the name.
        mac.update(limit.as_bytes());
        mac.update(&[0]);
        mac.update(key.as_bytes());
        URL_SAFE_NO_PAD.encode(mac.finalize().into_bytes()).into()
    }

    /// The stored form of an idempotency key. No limit's name contains a NUL, so it cannot collide with a limit's key.
    pub(crate) fn idempotency_key(&self, key: &str) -> Arc<str> {
        self.key("\0", key)
    }

    /// The stored form of a job's group. No limit's name is empty, so it cannot collide with a limit's key.
    pub(crate) fn group(&self, key: &Key) -> Key {
        Key(self.key("", &key.0))
    }
}

/// Whether the text has the form of a stored key.
pub(crate) fn is_hash(text: &str) -> bool {
    URL_SAFE_NO_PAD.decode(text).is_ok_and(|bytes| bytes.len() == 32)
}

impl fmt::Debug for KeySecret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("KeySecret(..)")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Expected values from another implementation: Python's `hmac.new(secret, name + b"\0" + key, "sha256")`.
    #[test]
    fn a_hash_is_hmac_sha_256_of_the_name_a_nul_and_the_key() {
        let secret = KeySecret::new([0x0b; 20]).unwrap();
        assert_eq!(&*secret.key("send_message", "u1"), "jUzEQTDwTZNAzuoXsBaNUuxhZvSBvChKtCwFntYUv4E");
        assert_eq!(&*secret.group(&"u1".into()).0, "88PXuKEeRXLYG_JO9J0TsGmO6R33zoHzkPNGm67TnpE");
        let long = KeySecret::new([0xaa; 131]).unwrap();
        assert_eq!(&*long.key("send_message", "\u{e9}"), "UQ8eafkk38dAf85XJCWWwJgY004Hzu3MQR7T_LOXsd8");
    }

    /// RFC 4231, test case 1.
    #[test]
    fn the_hash_matches_the_test_vector_of_rfc_4231() {
        let mut mac = Hmac::clone(&KeySecret::new([0x0b; 20]).unwrap().keyed);
        mac.update(b"Hi There");
        let hash = mac.finalize().into_bytes().iter().map(|byte| format!("{byte:02x}")).collect::<String>();
        assert_eq!(hash, "b0344c61d8db38535ca8afceaf0bf12b881dc200c9833da726e9376c2e32cff7");
    }

    #[test]
    fn names_and_keys_are_separated_and_the_empty_key_stays_empty() {
        let secret = KeySecret::new("sixteen bytes ok").unwrap();
        assert_ne!(secret.key("a", "bc"), secret.key("ab", "c"));
        assert_ne!(secret.key("a", "u1"), secret.key("b", "u1"));
        assert_ne!(secret.key("a", "u1"), KeySecret::new("sixteen bytes of").unwrap().key("a", "u1"));
        assert!(secret.key("a", "").is_empty() && secret.group(&"".into()).0.is_empty());
    }

    #[test]
    fn short_secrets_are_rejected_and_no_secret_is_printed() {
        for bytes in [0, 1, 15] {
            assert_eq!(KeySecret::new(vec![7; bytes]).unwrap_err(), InvalidKeySecret { bytes });
        }
        assert_eq!(format!("{:?}", KeySecret::new("sixteen bytes ok").unwrap()), "KeySecret(..)");
    }
}
