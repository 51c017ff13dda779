use std::fmt;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use crate::sql::{Names, Sql};

/// The newest migration of the tables that this release knows.
pub(crate) const SCHEMA_VERSION: i32 = 4;

/// The longest identifier of PostgreSQL, in bytes.
const LONGEST: usize = 63;

/// The schema that holds the limiter's table and functions. Default: `public`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Schema {
    name: Arc<str>,
}

/// A name that PostgreSQL would not take for a schema, or that the migrations cannot carry.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("\"{}\" is no schema's name here: it has 1 to 63 bytes, and no %, $ or control character", .0.escape_debug())]
pub struct InvalidSchema(String);

impl Schema {
    /// A schema of that name, taken as it is: case counts, and spaces and quotes may stand in it.
    ///
    /// # Errors
    /// [`InvalidSchema`] if the name is empty, longer than 63 bytes, or holds `%`, `$` or a control character: it is
    /// written into SQL that has formats, dollar quotes and comments.
    pub fn new(name: &str) -> Result<Self, InvalidSchema> {
        if name.is_empty() || name.len() > LONGEST || name.chars().any(|c| c.is_control() || c == '%' || c == '$') {
            return Err(InvalidSchema(name.to_owned()));
        }
        Ok(Self { name: name.into() })
    }

    /// The name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// As an SQL identifier.
    pub(crate) fn quoted(&self) -> String {
        format!("\"{}\"", self.name.replace('"', "\"\""))
    }

    /// SQL that was written for the schema `public`, for this one. In the files `public.` stands only where the schema is
    /// meant: a test sees to that.
    pub(crate) fn render(&self, sql: &str) -> String {
        if self.name() == "public" { sql.to_owned() } else { sql.replace("public.", &format!("{}.", self.quoted())) }
    }
}

impl Default for Schema {
    fn default() -> Self {
        Self { name: "public".into() }
    }
}

impl fmt::Display for Schema {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.name)
    }
}

/// SQL for one schema. The one place where SQL text is put together: what varies is a quoted identifier.
#[derive(Clone, Debug)]
pub(crate) struct Statements {
    pub(crate) schema: Schema,
    pub(crate) decide: Sql,
    pub(crate) decide_one: Sql,
    /// The same, committed without waiting for the disk.
    pub(crate) decide_relaxed: Sql,
    pub(crate) decide_one_relaxed: Sql,
    pub(crate) held: Sql,
    pub(crate) decide_once: Sql,
    pub(crate) flush: Sql,
    pub(crate) reset_name: Sql,
    pub(crate) prune: Sql,
    pub(crate) prune_answers: Sql,
    pub(crate) names: Names,
    /// Whether this release is known to work with the schema.
    pub(crate) is_checked: Arc<AtomicBool>,
}

impl Statements {
    pub(crate) fn new(schema: Schema, names: Names) -> Self {
        let quoted = schema.quoted();
        let arguments = |count: usize| (1..=count).map(|nth| format!("${nth}")).collect::<Vec<_>>().join(", ");
        let decide = format!(
            // The columns are bucket_balances, call_admitted, call_waits, item_refused, item_values; the server logs this text.
            "SELECT * FROM {quoted}.rate_limit_decide_batch({})",
            arguments(20)
        );
        let decide_one = format!("SELECT {quoted}.rate_limit_decide_one({})", arguments(13));
        // For the transaction of this one statement.
        let relaxed = "pg_catalog.set_config('synchronous_commit', 'off', true)";
        let decide_relaxed = format!("{decide}, {relaxed}");
        let decide_one_relaxed = format!("{decide_one} FROM {relaxed}");
        let held = format!("SELECT {quoted}.rate_limit_held($1, $2)");
        let decide_once = format!(
            "SELECT outcome, call_admitted, call_waits, item_refused, item_values \
             FROM {quoted}.rate_limit_decide_once({})",
            arguments(18)
        );
        let reset_name = format!("SELECT {quoted}.rate_limit_reset($1)");
        let prune =
            format!("SELECT pruned, last_name, last_key, last_shard FROM {quoted}.rate_limit_prune($1, $2, $3, $4)");
        let prune_answers = format!("SELECT {quoted}.rate_limit_prune_answers($1)");
        Self {
            schema,
            decide: Sql::new(decide, &names),
            decide_one: Sql::new(decide_one, &names),
            decide_relaxed: Sql::new(decide_relaxed, &names),
            decide_one_relaxed: Sql::new(decide_one_relaxed, &names),
            held: Sql::new(held, &names),
            decide_once: Sql::new(decide_once, &names),
            flush: Sql::new("SELECT pg_catalog.pg_logical_emit_message(true, 'pg_limiter', '')", &names),
            reset_name: Sql::new(reset_name, &names),
            prune: Sql::new(prune, &names),
            prune_answers: Sql::new(prune_answers, &names),
            names,
            is_checked: Arc::default(),
        }
    }
}
