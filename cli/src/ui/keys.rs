//! How keys are shown and named in links: as they are, or as hashes.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};

use crate::error::CliError;
use crate::key_secret::HiddenKeys;

/// The most keys that the page remembers by their hashes, so that links with a hash work.
const REMEMBERED: usize = 200_000;

#[derive(Debug)]
pub(super) struct Keys {
    hidden: Option<Hidden>,
}

#[derive(Debug)]
struct Hidden {
    hashes: HiddenKeys,
    /// Keys by their hashes.
    known: Mutex<HashMap<String, String>>,
}

impl Keys {
    pub(super) fn new(hide: bool) -> Result<Self, CliError> {
        let hidden = || Ok::<_, CliError>(Hidden { hashes: HiddenKeys::new()?, known: Mutex::default() });
        Ok(Self { hidden: hide.then(hidden).transpose()? })
    }

    pub(super) const fn are_hidden(&self) -> bool {
        self.hidden.is_some()
    }

    /// The key, or its hash: to show it, and to name it in links and forms. The empty key, which all callers share, stays.
    pub(super) fn shown(&self, key: &str) -> String {
        let Some(Hidden { hashes, known }) = &self.hidden else { return key.to_owned() };
        if key.is_empty() {
            return String::new();
        }
        let hash = hashes.hash(key);
        let mut known = known.lock().unwrap_or_else(PoisonError::into_inner);
        if known.len() >= REMEMBERED {
            known.clear();
        }
        known.entry(hash.clone()).or_insert_with(|| key.to_owned());
        hash
    }

    /// The key that a link or a form names.
    pub(super) fn named(&self, shown: &str) -> Option<String> {
        match &self.hidden {
            None => Some(shown.to_owned()),
            Some(_) if shown.is_empty() => Some(String::new()),
            Some(Hidden { known, .. }) => known.lock().unwrap_or_else(PoisonError::into_inner).get(shown).cloned(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hashes_name_keys_that_were_shown_in_this_run_only() {
        let [keys, other] = [Keys::new(true).unwrap(), Keys::new(true).unwrap()];
        let hash = keys.shown("alice@example.com");
        assert_ne!(hash, other.shown("alice@example.com"));
        assert_eq!((keys.named(&hash).as_deref(), keys.named("alice@example.com")), (Some("alice@example.com"), None));
        assert_eq!((keys.shown(""), keys.named("")), (String::new(), Some(String::new())));
        let plain = Keys::new(false).unwrap();
        assert_eq!((plain.shown("a"), plain.named("a")), ("a".to_owned(), Some("a".to_owned())));
    }
}
