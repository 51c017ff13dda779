//! The texts of the README and the guide, for the tests that check them.

use pg_limiter::Schema;
use pg_limiter::migrate::{Part, Use};

pub const README: &str = include_str!("../../../README.md");

macro_rules! chapters {
    ($($name:literal),+ $(,)?) => { [$(($name, include_str!(concat!("../../../src/guide/", $name, ".md")))),+] };
}

/// The chapters of the guide, by name.
pub const GUIDE: [(&str, &str); 34] = chapters![
    "addresses",
    "alerts",
    "alternatives",
    "beyond_one_machine",
    "calendar_windows",
    "concurrency",
    "drivers",
    "failures",
    "gates",
    "glossary",
    "headroom",
    "index",
    "kinds",
    "llm_gateways",
    "many_callers",
    "migrations",
    "outgoing",
    "performance",
    "personal_data",
    "poolers",
    "queue",
    "review",
    "scheduled_jobs",
    "shards",
    "sql",
    "testing",
    "thresholds",
    "tool",
    "transactions",
    "ui",
    "upgrading",
    "waiting",
    "web",
    "yugabytedb",
];

pub fn chapter(name: &str) -> &'static str {
    GUIDE.iter().find(|(chapter, _)| *chapter == name).expect("a chapter").1
}

/// The blocks of SQL in a text.
pub fn sql_of(text: &str) -> Vec<&str> {
    text.split("```sql\n").skip(1).filter_map(|block| block.split("```").next()).collect()
}

/// The grants of a use, for `app_role`.
pub fn grants(of: Use) -> String {
    of.grants(&Schema::default(), Part::ALL, "app_role").join("\n")
}
