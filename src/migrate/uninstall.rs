//! The SQL that removes an installation.

use crate::migrate::Part;
use crate::migrate::functions::droppable;
use crate::migrate::names::{TEST_CLOCK, install};
use crate::migrate::tables::tables;
use crate::sql::Schema;

const CALLERS: &str = include_str!("../../sql/install/callers.sql");

/// Returns the SQL that removes all objects of the limiter, with all balances and jobs. It first warns of functions of the
/// application that call the limiter, and so fail afterwards.
pub fn uninstall(schema: &Schema) -> String {
    let relations = |kind: &'static str| {
        let of_kind = move |line: &super::tables::Line| line.what == "table" && line.definition == kind;
        tables(Part::ALL).filter(of_kind).map(|line| line.which)
    };
    let mut statements: Vec<String> = Vec::new();
    let mut drop = |kind: &str, name: &str| statements.push(format!("DROP {kind} IF EXISTS rate_limit.{name};"));
    relations("view").for_each(|view| drop("VIEW", view));
    droppable().iter().for_each(|function| drop("FUNCTION", function));
    drop("SEQUENCE", TEST_CLOCK);
    relations("table").for_each(|table| drop("TABLE", table));
    install(schema, CALLERS, Part::ALL) + "\n" + &schema.render(&(statements.join("\n") + "\n"))
}
