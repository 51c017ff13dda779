//! The secret with which the application hashes its keys, if it does, and hashes in place of keys that must not be shown.

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::{Mutex, PoisonError};

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

/// The most keys that are remembered by their hashes, so that links with a hash work.
const REMEMBERED: usize = 200_000;

/// Shows keys, or hashes in place of them: the same key has the same hash in this run, and another one in the next.
#[derive(Default)]
pub(crate) struct Keys {
    /// `None`: keys are shown.
    secret: Option<KeySecret>,
    known: Mutex<HashMap<String, String>>,
}

impl Keys {
    pub(crate) fn new(hide: bool) -> Result<Self> {
        Ok(Self { secret: hide.then(secret).transpose()?, known: Mutex::default() })
    }

    pub(crate) const fn are_hidden(&self) -> bool {
        self.secret.is_some()
    }

    /// The key, or its hash: to show it, and to name it in links and forms. The empty key, which all callers share, stays.
    pub(crate) fn shown(&self, key: &str) -> String {
        let Some(secret) = &self.secret else { return key.to_owned() };
        let mut hash = secret.stored_key("", key);
        hash.truncate(LENGTH);
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        if known.len() >= REMEMBERED {
            known.clear();
        }
        known.entry(hash.clone()).or_insert_with(|| key.to_owned());
        hash
    }

    pub(crate) fn named(&self, shown: &str) -> Option<String> {
        if self.secret.is_none() || shown.is_empty() {
            return Some(shown.to_owned());
        }
        self.known.lock().unwrap_or_else(PoisonError::into_inner).get(shown).cloned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hashes_name_keys_that_were_shown_in_this_run_only() {
        let [keys, other] = [Keys::new(true).unwrap(), Keys::new(true).unwrap()];
        let hash = keys.shown("alice@example.com");
        assert_eq!((hash.len(), keys.shown("alice@example.com")), (LENGTH, hash.clone()));
        assert!(!hash.contains("alice") && hash != other.shown("alice@example.com"));
        assert_eq!((keys.named(&hash).as_deref(), keys.named("alice@example.com")), (Some("alice@example.com"), None));
        assert_eq!((keys.shown(""), keys.named("")), (String::new(), Some(String::new())));
        let plain = Keys::new(false).unwrap();
        assert_eq!((plain.shown("a"), plain.named("a")), ("a".to_owned(), Some("a".to_owned())));
    }
}
