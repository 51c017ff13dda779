//! The SQL that removes an installation.

use crate::migrate::Part;
use crate::migrate::names::install;
use crate::migrate::tables::tables;
use crate::sql::Schema;

const CALLERS: &str = include_str!("../../sql/install/callers.sql");
const UNINSTALL: &str = include_str!("../../sql/install/uninstall.sql");

/// Returns the SQL that removes all objects of the limiter, with all balances and jobs. Objects of the application with the same names
/// stay. It first warns of functions of the application that call the limiter, and so fail afterwards.
pub fn uninstall(schema: &Schema) -> String {
    let relations = |part| {
        let names = tables(Part::ALL).filter(|line| line.part == part && line.what == "table").map(|line| line.which);
        names.collect::<Vec<_>>().join(", ")
    };
    let sql = UNINSTALL
        .replace("$core${}$core$", &format!("$core${{{}}}$core$", relations(Part::Core)))
        .replace("$queue${}$queue$", &format!("$queue${{{}}}$queue$", relations(Part::Queue)));
    install(schema, CALLERS, Part::ALL) + "\n" + &schema.render(&sql)
}
