use sha2::{Digest, Sha256};

use crate::limit::{Kind, Limit};

impl Limit {
    /// Returns the start of one of the windows of a bucket, as the SQL function `_grid` does; `None` for a kind without windows
    /// of a fixed length.
    pub(crate) fn phase(&self, name: &str, key: &str) -> Option<i64> {
        match self.kind() {
            Kind::FixedWindow => Some(self.start_micros().unwrap_or_else(|| of_bucket(name, key))),
            Kind::SlidingWindow => Some(self.start_micros().unwrap_or_default() % self.period_micros()),
            _ => None,
        }
    }
}

/// Spreads the windows of a limit without a start, so that those of many keys do not end together.
fn of_bucket(name: &str, key: &str) -> i64 {
    let hash = Sha256::new().chain_update(name).chain_update(":").chain_update(key).finalize();
    hash[..7].iter().fold(0, |phase, byte| phase << 8 | i64::from(*byte))
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use crate::limit::Limit;

    /// `SELECT rate_limit._grid('fixed_window', NULL, 1, 'daily', 'u1')`, and so on. `doors.rs` compares more in a database.
    #[test]
    fn phases_are_those_of_the_database() {
        let minute = Duration::from_secs(60);
        let fixed = Limit::fixed_window(1, minute).build().expect("a limit");
        assert_eq!(fixed.phase("daily", "u1"), Some(23_416_791_639_679_701));
        assert_eq!(fixed.phase("a", "z\u{fc}rich"), Some(68_415_609_861_764_661));
        let fixed = Limit::fixed_window(1, minute).start(Duration::from_secs(90)).build().expect("a limit");
        assert_eq!(fixed.phase("a", "k"), Some(30_000_000));
        let sliding =
            |start| Limit::sliding_window(1, minute).start(Duration::from_secs(start)).build().expect("a limit");
        assert_eq!((sliding(0).phase("a", "k"), sliding(90).phase("a", "k")), (Some(0), Some(30_000_000)));
        assert_eq!(Limit::token_bucket(1, minute).build().expect("a limit").phase("a", "k"), None);
    }
}
