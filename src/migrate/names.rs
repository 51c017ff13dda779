//! The names of the limiter's objects. The schema can be one that holds objects of the application, too, such as `public`.

use std::collections::BTreeSet;

use crate::migrate::Part;
use crate::migrate::functions::names;
use crate::migrate::tables::tables;
use crate::sql::Schema;

/// Stands for the names in the SQL of `sql/install/`.
const MARKER: &str = "$names${}$names$";

/// The sequence of a test clock.
pub(super) const TEST_CLOCK: &str = "_test_clock";

/// The sequence of the ids of jobs, which PostgreSQL creates with the table.
const JOB_IDS: &str = "jobs_id_seq";

/// The longest line of the names, in printed SQL.
const WIDTH: usize = 120;

/// The names of the objects of these parts.
pub(super) fn of(parts: &[Part]) -> BTreeSet<&'static str> {
    let relations = tables(parts).filter(|line| line.what == "table").map(|line| line.which);
    let sequences = if parts.contains(&Part::Queue) { [TEST_CLOCK, JOB_IDS] } else { [TEST_CLOCK; 2] };
    names(parts).chain(relations).chain(sequences).collect()
}

/// Returns SQL of `sql/install/` for this schema, with the names of the objects of these parts.
pub(super) fn install(schema: &Schema, sql: &str, parts: &[Part]) -> String {
    let all = of(parts);
    let mut list = String::new();
    let mut width = 0;
    for name in all {
        if !list.is_empty() {
            list.push(',');
        }
        width += name.len() + 1;
        if width > WIDTH || list.is_empty() {
            list.push_str("\n    ");
            width = name.len() + 4;
        }
        list.push_str(name);
    }
    schema.render(&sql.replace(MARKER, &format!("$names${{{list}\n  }}$names$")))
}
