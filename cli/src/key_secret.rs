//! The secret with which the application hashes its keys, if it does, and hashes in place of keys that must not be shown.

use std::path::PathBuf;

use clap::Args;

use crate::{CliError, Result, input};
use pg_limiter::KeySecret;

const VARIABLE: &str = "PG_LIMITER_KEY_SECRET_FILE";

#[derive(Args, Debug)]
#[group(skip)]
pub(super) struct KeySecretArgs {
    /// Read the secret with which the application hashes its keys from this file. A line break at the end of the file is
    /// ignored; `-` is standard input [default: the file named by the environment variable PG_LIMITER_KEY_SECRET_FILE]
    #[arg(long, value_name = "FILE")]
    key_secret_file: Option<PathBuf>,
}

impl KeySecretArgs {
    /// Reads the secret if a file is named. An empty variable counts as unset.
    pub(super) fn read(&self) -> Result<Option<KeySecret>> {
        let named = || std::env::var_os(VARIABLE).filter(|name| !name.is_empty()).map(PathBuf::from);
        let Some(path) = self.key_secret_file.clone().or_else(named) else { return Ok(None) };
        let bytes = input::read(&path)?;
        let secret = bytes.strip_suffix(b"\n").map_or(&*bytes, |line| line.strip_suffix(b"\r").unwrap_or(line));
        let invalid = |error| CliError::usage(format!("{}: {error}", input::name(&path)));
        KeySecret::new(secret).map(Some).map_err(invalid)
    }
}

const LENGTH: usize = 12;

/// Random bytes that cannot be guessed.
pub(crate) fn random() -> Result<[u8; 32]> {
    let mut bytes = [0; 32];
    getrandom::fill(&mut bytes).map_err(|error| CliError::failed(format!("no random numbers: {error}")))?;
    Ok(bytes)
}

pub(crate) fn secret() -> Result<KeySecret> {
    KeySecret::new(random()?).map_err(CliError::failed)
}

/// Hides keys: the same key has the same hash in this run, and another one in the next.
#[derive(Clone, Debug)]
pub(crate) struct HiddenKeys(KeySecret);

impl HiddenKeys {
    pub(crate) fn new() -> Result<Self> {
        secret().map(Self)
    }

    /// The hash of a key. The empty key, which all callers share, stays: it hides nothing.
    pub(crate) fn hash(&self, key: &str) -> String {
        let mut hash = self.0.stored_key("", key);
        hash.truncate(LENGTH);
        hash
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_has_one_hash_in_a_run_and_another_in_the_next() {
        let [keys, other] = [HiddenKeys::new().unwrap(), HiddenKeys::new().unwrap()];
        let hash = keys.hash("alice@example.com");
        assert_eq!((hash.len(), keys.hash("alice@example.com")), (LENGTH, hash.clone()));
        assert!(!hash.contains("alice") && hash != other.hash("alice@example.com"));
        assert_eq!(keys.hash(""), "");
    }
}
