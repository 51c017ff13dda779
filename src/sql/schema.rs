use std::fmt;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use crate::sql::{NamedStatements, Sql};

/// The newest migration of the tables that this release supports.
pub(crate) const SCHEMA_VERSION: i32 = 1;

/// The default schema. In the SQL files, its name and a dot mark the limiter's schema.
const DEFAULT: &str = "rate_limit";

/// The longest PostgreSQL identifier, in bytes.
const LONGEST: usize = 63;

/// The schema that holds the limiter's tables and functions. Default: `rate_limit`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Schema {
    name: Arc<str>,
}

/// A schema name that PostgreSQL does not accept, or that the migrations cannot use.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("invalid schema name \"{}\": use 1 to 63 bytes without %, $ or control characters", .0.escape_debug())]
pub struct InvalidSchema(String);

impl Schema {
    /// Creates a schema name, used exactly as given: case matters, and spaces and quotes are allowed.
    ///
    /// # Errors
    /// [`InvalidSchema`] if the name is empty, is longer than 63 bytes, or contains `%`, `$` or a control character.
    /// The name is inserted into SQL that contains format strings, dollar quotes and comments.
    pub fn new(name: &str) -> Result<Self, InvalidSchema> {
        if name.is_empty() || name.len() > LONGEST || name.chars().any(|c| c.is_control() || c == '%' || c == '$') {
            return Err(InvalidSchema(name.to_owned()));
        }
        Ok(Self { name: name.into() })
    }

    /// Returns the name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns the name as a quoted SQL identifier.
    pub fn quoted(&self) -> String {
        format!("\"{}\"", self.name.replace('"', "\"\""))
    }

    /// Rewrites SQL for the schema `rate_limit` to this schema. In the SQL files, `rate_limit.` occurs only where the schema
    /// is meant; a test checks that.
    pub(crate) fn render(&self, sql: &str) -> String {
        if self.name() == DEFAULT {
            return sql.to_owned();
        }
        sql.replace(&format!("{DEFAULT}."), &format!("{}.", self.quoted()))
    }
}

impl Default for Schema {
    fn default() -> Self {
        Self { name: DEFAULT.into() }
    }
}

impl fmt::Display for Schema {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.name)
    }
}

/// SQL for one schema. This is the only place that composes SQL text, and only quoted identifiers vary.
#[derive(Clone, Debug)]
pub(crate) struct Statements {
    pub(crate) schema: Schema,
    pub(crate) deciding: Deciding,
    /// The same, but committed without waiting for the disk.
    pub(crate) deciding_relaxed: Deciding,
    pub(crate) held: Sql,
    pub(crate) decide_once: Sql,
    pub(crate) flush: Sql,
    pub(crate) reset_name: Sql,
    pub(crate) block: Sql,
    pub(crate) unblock: Sql,
    pub(crate) window: Sql,
    pub(crate) names_of_limits: Sql,
    pub(crate) forget: Sql,
    pub(crate) prune: Sql,
    pub(crate) prune_answers: Sql,
    pub(crate) named: NamedStatements,
    /// Whether this release has been found to work with the schema.
    pub(crate) is_checked: Arc<AtomicBool>,
}

/// The statements that decide a batch.
#[derive(Clone, Debug)]
pub(crate) struct Deciding {
    /// The tokens of one call on one bucket: one statement for each kind.
    pub(crate) token_bucket: Sql,
    pub(crate) fixed_window: Sql,
    pub(crate) sliding_window: Sql,
    /// Any call on one bucket.
    pub(crate) one: Sql,
    /// One call on two token buckets.
    pub(crate) two_token_buckets: Sql,
    /// One call on a few buckets.
    pub(crate) few: Sql,
    /// The sums that a batch takes from several buckets.
    pub(crate) sums: Sql,
    /// Slots of several buckets, one call for each.
    pub(crate) slots: Sql,
    /// All calls, one by one.
    pub(crate) each: Sql,
}

impl Deciding {
    /// The columns are not named in the text, because the server logs it. They are: call_admitted, call_waits,
    /// item_refused, item_values.
    fn new(quoted: &str, relaxed: bool, named: &NamedStatements) -> Self {
        // Applies to the transaction of this statement only.
        let setting = "pg_catalog.set_config('synchronous_commit', 'off', true)";
        let (from, and) =
            if relaxed { (format!(" FROM {setting}"), format!(", {setting}")) } else { Default::default() };
        let arguments = |count: usize| (1..=count).map(|nth| format!("${nth}")).collect::<Vec<_>>().join(", ");
        let lone = |name: &str, count: usize| {
            Sql::new(format!("SELECT {quoted}._take_{name}({}){from}", arguments(count)), named)
        };
        Self {
            token_bucket: lone("token_bucket", 8),
            fixed_window: lone("fixed_window", 9),
            sliding_window: lone("sliding_window", 8),
            one: Sql::new(format!("SELECT {quoted}._decide_one({}){from}", arguments(13)), named),
            two_token_buckets: lone("two_token_buckets", 12),
            few: lone("few", 8),
            sums: Sql::new(format!("SELECT {quoted}._decide_sums({}){from}", arguments(14)), named),
            slots: Sql::new(format!("SELECT {quoted}._take_slots({}){from}", arguments(8)), named),
            each: Sql::new(format!("SELECT * FROM {quoted}._decide({}){and}", arguments(19)), named),
        }
    }
}

impl Statements {
    pub(crate) fn new(schema: Schema, named: NamedStatements) -> Self {
        let quoted = schema.quoted();
        let arguments = |count: usize| (1..=count).map(|nth| format!("${nth}")).collect::<Vec<_>>().join(", ");
        let held = format!("SELECT {quoted}._held($1, $2)");
        let decide_once = format!(
            "SELECT outcome, call_admitted, call_waits, item_refused, item_values \
             FROM {quoted}._decide_once({})",
            arguments(18)
        );
        let reset_name = format!("SELECT {quoted}.reset($1)");
        let block = format!("SELECT {quoted}.block($1, $2, $3)");
        let unblock = format!("SELECT {quoted}.unblock($1, $2)");
        let window = format!("SELECT length, ends_in FROM {quoted}.window($1, $2, $3)");
        let names_of_limits = format!("SELECT * FROM {quoted}._names()");
        // The columns are not named in the text, because the server logs it.
        let forget = format!("SELECT * FROM {quoted}.forget({})", arguments(11));
        let prune = format!("SELECT pruned, last_name, last_key, last_shard FROM {quoted}.prune($1, $2, $3, $4)");
        let prune_answers = format!("SELECT {quoted}._prune_answers($1)");
        Self {
            schema,
            deciding: Deciding::new(&quoted, false, &named),
            deciding_relaxed: Deciding::new(&quoted, true, &named),
            held: Sql::new(held, &named),
            decide_once: Sql::new(decide_once, &named),
            flush: Sql::new("SELECT pg_catalog.pg_logical_emit_message(true, 'pg_limiter', '')", &named),
            reset_name: Sql::new(reset_name, &named),
            block: Sql::new(block, &named),
            unblock: Sql::new(unblock, &named),
            window: Sql::new(window, &named),
            names_of_limits: Sql::new(names_of_limits, &named),
            forget: Sql::new(forget, &named),
            prune: Sql::new(prune, &named),
            prune_answers: Sql::new(prune_answers, &named),
            named,
            is_checked: Arc::default(),
        }
    }
}
