//! The changes that were just made. A link cannot show one that was not.

use std::collections::VecDeque;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// A change is shown for this time.
const SHOWN_FOR: Duration = Duration::from_secs(60);
const MOST: usize = 100;

#[derive(Debug, Default)]
pub(super) struct Done(Mutex<VecDeque<(Instant, String, &'static str)>>);

impl Done {
    /// Records a change of a key or job.
    pub(super) fn add(&self, of: &impl ToString, change: &'static str) {
        let mut changes = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        changes.push_front((Instant::now(), of.to_string(), change));
        changes.truncate(MOST);
    }

    /// The change that a link names, if it was made.
    pub(super) fn recent(&self, of: &impl ToString, named: &str) -> Option<&'static str> {
        let (of, changes) = (of.to_string(), self.0.lock().unwrap_or_else(PoisonError::into_inner));
        let is_named = |(at, changed, change): &&(Instant, String, &'static str)| {
            at.elapsed() < SHOWN_FOR && *changed == of && *change == named
        };
        changes.iter().find(is_named).map(|(.., change)| *change)
    }
}
