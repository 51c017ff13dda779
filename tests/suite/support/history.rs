//! The calls of many callers and their results, and checks that the final balances agree with them.

use serde::{Deserialize, Serialize};

/// The result of a call.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum Outcome {
    Admitted,
    Denied,
    /// An error that means that nothing was taken.
    Failed(String),
    /// The outcome is unknown, or the caller did not wait for it.
    Unknown(String),
}

/// One call. Times are in microseconds, on one clock.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Record {
    /// The index of the group that was charged.
    pub group: usize,
    pub count: u32,
    pub began: u64,
    pub ended: u64,
    /// The form of the call, for messages.
    pub ran: String,
    pub outcome: Outcome,
}

/// Buckets that are always charged together. They have the same capacity and do not refill.
#[derive(Clone, Debug)]
pub struct Group {
    pub capacity: f64,
    /// The final balance of each bucket.
    pub left: Vec<f64>,
}

/// Everything in the history that contradicts the limits or the final balances.
pub fn violations(groups: &[Group], history: &[Record], longest: u64) -> Vec<String> {
    let mut found = Vec::new();
    for (nth, group) in groups.iter().enumerate() {
        let records: Vec<&Record> = history.iter().filter(|record| record.group == nth).collect();
        check_books(nth, group, &records, &mut found);
        check_denials(nth, group, &records, &mut found);
    }
    for record in history {
        if record.ended - record.began > longest {
            found.push(format!("late: {record:?}"));
        }
    }
    found
}

fn sum<'a>(records: impl Iterator<Item = &'a &'a Record>) -> f64 {
    records.fold(0.0, |sum, record| sum + f64::from(record.count)) // For no records, `sum` would be -0.
}

fn may_have_taken(record: &Record) -> bool {
    matches!(record.outcome, Outcome::Admitted | Outcome::Unknown(_))
}

fn check_books(nth: usize, group: &Group, records: &[&Record], found: &mut Vec<String>) {
    let admitted = sum(records.iter().filter(|record| record.outcome == Outcome::Admitted));
    let most = sum(records.iter().filter(|record| may_have_taken(record)));
    for (bucket, left) in group.left.iter().enumerate() {
        let spent = group.capacity - left;
        if spent > group.capacity + 1e-6 {
            found.push(format!("group {nth}, bucket {bucket}: {spent} were spent of {}", group.capacity));
        }
        if admitted > spent + 1e-6 {
            found.push(format!("group {nth}, bucket {bucket}: {admitted} were admitted, and only {spent} spent"));
        }
        if spent > most + 1e-6 {
            found.push(format!("group {nth}, bucket {bucket}: {spent} were spent, and at most {most} taken"));
        }
        if (left - group.left[0]).abs() > 1e-6 {
            found.push(format!("group {nth} was not charged as a whole: {:?} are left", group.left));
        }
    }
}

/// Finds denials although the capacity covered the call and everything that can have been taken before it ended.
fn check_denials(nth: usize, group: &Group, records: &[&Record], found: &mut Vec<String>) {
    for denied in records.iter().filter(|record| record.outcome == Outcome::Denied) {
        let before = records.iter().filter(|record| may_have_taken(record) && record.began < denied.ended);
        let taken = sum(before);
        if taken + f64::from(denied.count) <= group.capacity + 1e-6 {
            found.push(format!("group {nth}: denied with {} left: {denied:?}", group.capacity - taken));
        }
    }
}
