//! The tables and functions that the migrations create.

use crate::migrate::Part;

/// The tables, views, columns and indexes of each part. A test compares it with the migrations, and with `BLESS=1` writes it.
const TABLES: &str = include_str!("../../migrations/tables.txt");

/// A table, a view, a column or an index.
#[derive(Clone, Copy, Debug)]
pub(super) struct Line {
    pub(super) part: Part,
    /// `table` (or a view), `column` or `index`.
    pub(super) what: &'static str,
    /// The name: that of the table first.
    pub(super) which: &'static str,
    pub(super) definition: &'static str,
}

impl Line {
    /// Whether it is a column that a row cannot leave out: an application's table of the same name has other ones.
    pub(super) fn is_required(&self) -> bool {
        let is_record = self.which == "objects.sha256"; // Each installation writes it.
        self.what == "column"
            && (is_record || self.definition.contains(" NOT NULL") && !self.definition.contains(" DEFAULT "))
    }

    /// The table that the line is about.
    pub(super) fn table(&self) -> &'static str {
        self.which.split('.').next().unwrap_or_default()
    }
}

/// The lines of these parts.
pub(super) fn tables(parts: &[Part]) -> impl Iterator<Item = Line> {
    let mut part = Part::Core;
    let lines = TABLES.lines().filter_map(move |line| {
        match line {
            "[core]" => part = Part::Core,
            "[queue]" => part = Part::Queue,
            _ => {}
        }
        let (object, definition) = line.split_once(": ")?;
        let (what, which) = object.split_once(' ')?;
        Some(Line { part, what, which, definition })
    });
    lines.filter(|line| parts.contains(&line.part))
}
