use std::sync::LazyLock;

use crate::migrate::Part;
use crate::sql::Schema;

/// A function of the limiter, as SQL.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Function {
    /// The name and the argument types, such as `reset(text, text)`. It never changes: a function with different
    /// arguments gets a new name.
    pub signature: &'static str,
    /// The part of the installation that contains the function.
    pub part: Part,
    /// The SHA-256 of the definition, in hexadecimal. It is the same in every schema and on every version of PostgreSQL.
    pub sha256: &'static str,
    /// The SQL that creates or replaces the function in the requested schema.
    pub sql: String,
}

/// A line for each function: the SHA-256 of its definition, its file in `sql/`, and its signature. A test compares it with the
/// sources, and with `BLESS=1` writes it.
const LOCK: &str = include_str!("../../sql/functions.lock");

macro_rules! sources {
    ($($name:literal)*) => {
        &[$((concat!($name, ".sql"), include_str!(concat!("../../sql/", $name, ".sql")))),*]
    };
}

/// The files of the core. A test checks that the lists equal the contents of the folder.
const CORE: &[(&str, &str)] = sources![
    "answers/decide_once"
    "answers/prune"
    "api/acquire"
    "api/acquire_with"
    "api/block"
    "api/call"
    "api/charge_all"
    "api/charge_all_with"
    "api/check"
    "api/check_all"
    "api/check_all_with"
    "api/check_with"
    "api/credit_all"
    "api/credit_all_with"
    "api/define"
    "api/defined"
    "api/definition"
    "api/elements"
    "api/enforce"
    "api/enforce_with"
    "api/forget"
    "api/is_blocked"
    "api/length"
    "api/limit"
    "api/limit_all"
    "api/limit_all_with"
    "api/limit_with"
    "api/limits_file"
    "api/names"
    "api/prune"
    "api/notify"
    "api/redefine"
    "api/release"
    "api/renew"
    "api/require_gate"
    "api/reset"
    "api/reset_name"
    "api/rule"
    "api/several"
    "api/unblock"
    "api/undefine"
    "api/validate"
    "api/validate_element"
    "api/window"
    "decide/asked"
    "decide/clock"
    "decide/decide"
    "decide/decide_each"
    "decide/decide_one"
    "decide/decide_rows"
    "decide/decide_sums"
    "decide/exact"
    "decide/hand_on"
    "decide/held"
    "decide/item"
    "decide/late_after"
    "decide/retake"
    "decide/take_few"
    "decide/take_slots"
    "decide/write"
    "engines/is_distributed"
    "engines/rows"
    "engines/take_one"
    "kinds/calendar_window"
    "kinds/concurrency"
    "kinds/fixed_window"
    "kinds/kinds"
    "kinds/sliding_window"
    "kinds/token_bucket"
    "shards/draw"
    "shards/find"
    "shards/gather"
    "shards/lock_buckets"
    "shards/rows"
    "shards/spread"
];

/// The files of the queue.
const QUEUE: &[(&str, &str)] = sources![
    "queue/again"
    "queue/ask_slots"
    "queue/ask_to_start"
    "queue/await_turns"
    "queue/block_jobs"
    "queue/claim"
    "queue/claimed_jobs"
    "queue/correct"
    "queue/correct_started"
    "queue/create_buckets"
    "queue/dead_jobs_prune"
    "queue/decide_started"
    "queue/drain"
    "queue/end_turns"
    "queue/enqueue"
    "queue/enqueue_each"
    "queue/enqueue_jobs"
    "queue/existing_jobs"
    "queue/expire_jobs"
    "queue/forget_jobs"
    "queue/in_line"
    "queue/job_again"
    "queue/job_cancel"
    "queue/job_done"
    "queue/job_extend"
    "queue/job_requeue"
    "queue/job_settle"
    "queue/jobs_discard"
    "queue/jobs_lapsed"
    "queue/jobs_prune"
    "queue/last_time"
    "queue/lock_due"
    "queue/lock_slots"
    "queue/lowest_due"
    "queue/pause"
    "queue/pay_ahead"
    "queue/pick_jobs"
    "queue/plan_claim"
    "queue/prepare_claim"
    "queue/queue_gauges"
    "queue/ready_lines"
    "queue/repay_jobs"
    "queue/requeue_dead"
    "queue/reserve_again"
    "queue/reserve_jobs"
    "queue/reserve_turn"
    "queue/resume"
    "queue/retime_jobs"
    "queue/ring"
    "queue/start_jobs"
    "queue/stop_groups"
    "queue/take_turns"
    "queue/turn_fronts"
    "queue/unpay"
    "queue/wake_groups"
    "queue/write_jobs"
];

/// The functions that replace those of the queue that the core calls, while the queue is not installed.
const WITHOUT_QUEUE: &[(&str, &str)] = sources![
    "install/without_queue/forget_jobs"
    "install/without_queue/slots_freed"
];

const CREATE: &str = "CREATE OR REPLACE FUNCTION rate_limit.";

/// When a function is installed.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Condition {
    Part(Part),
    WithoutQueue,
}

/// A function in `sql/`.
struct Source {
    condition: Condition,
    locked: Locked,
    sql: &'static str,
}

/// A line of the lock file.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Locked {
    sha256: &'static str,
    file: &'static str,
    signature: &'static str,
}

impl Locked {
    fn all() -> impl Iterator<Item = Self> {
        LOCK.lines().filter_map(|line| {
            let mut words = line.splitn(3, ' ');
            Some(Self { sha256: words.next()?, file: words.next()?, signature: words.next()? })
        })
    }

    fn name(&self) -> &'static str {
        self.signature.split('(').next().unwrap_or_default()
    }

    /// The line of a function. A function that is not in the lock file yet has no hash.
    fn of(file: &'static str, name: &'static str) -> Self {
        let new = Self { sha256: "", file, signature: name };
        Self::all().find(|locked| locked.file == file && locked.name() == name).unwrap_or(new)
    }
}

static SOURCES: LazyLock<Vec<Source>> = LazyLock::new(|| {
    let sources_of = [
        (Condition::Part(Part::Core), CORE),
        (Condition::Part(Part::Queue), QUEUE),
        (Condition::WithoutQueue, WITHOUT_QUEUE),
    ];
    let mut sources = Vec::new();
    for (condition, files) in sources_of {
        for &(file, text) in files {
            for (name, sql) in split(text) {
                sources.push(Source { condition, locked: Locked::of(file, name), sql });
            }
        }
    }
    sources.sort_by_key(|source| source.locked.signature);
    sources
});

/// Returns the statement that makes the first sentence of the comment above a function its comment in the database; nothing if
/// the file has such a statement, as for some functions that people call.
fn comment(name: &str, sql: &str) -> String {
    if sql.contains("COMMENT ON FUNCTION") {
        return String::new();
    }
    let before = sql.lines().take_while(|line| line.is_empty() || line.starts_with("--")).collect::<Vec<_>>();
    let above = before.rsplit(|line| line.is_empty()).next().unwrap_or_default();
    let text = above.iter().map(|line| line.trim_start_matches(['-', ' '])).collect::<Vec<_>>().join(" ");
    let text = text.replace('\'', "''");
    let sentence = text.split_once(". ").map_or(text.trim_end_matches('.'), |(first, _)| first);
    format!("COMMENT ON FUNCTION rate_limit.{name} IS '{sentence}.';\n")
}

/// Splits a file into its functions. Each keeps the comment above it. A file without a line that begins with CREATE is one
/// function: a block composes its statement.
fn split(text: &'static str) -> Vec<(&'static str, &'static str)> {
    let mut starts = Vec::new();
    let (mut at, mut comment) = (0, None);
    for line in text.split_inclusive('\n') {
        if let Some(named) = line.strip_prefix(CREATE) {
            let start = if starts.is_empty() { 0 } else { comment.unwrap_or(at) };
            starts.push((start, named.split('(').next().unwrap_or_default()));
        }
        comment = line.starts_with("--").then(|| comment.unwrap_or(at));
        at += line.len();
    }
    if starts.is_empty() {
        let name = text.split_once(CREATE).and_then(|(_, rest)| rest.split('(').next()).unwrap_or_default();
        return vec![(name, text.trim())];
    }
    let ends = starts.iter().skip(1).map(|(start, _)| *start).chain([text.len()]);
    starts.iter().zip(ends).map(|(&(start, name), end)| (name, text[start..end].trim())).collect()
}

/// Returns the functions of this release for this schema and these parts of an installation. Create or replace them after the
/// tables. With `check_function_bodies = off`, their order does not matter. [`Part::Core`] alone includes two functions that
/// replace functions of the queue.
///
/// ```
/// use pg_limiter::migrate::{Part, functions};
/// for function in functions(&pg_limiter::Schema::default(), Part::ALL) {
///     println!("{} {}", function.sha256, function.signature);
/// }
/// ```
pub fn functions(schema: &Schema, parts: &[Part]) -> Vec<Function> {
    let part_of = |condition| match condition {
        Condition::Part(part) => parts.contains(&part).then_some(part),
        Condition::WithoutQueue => (parts.contains(&Part::Core) && !parts.contains(&Part::Queue)).then_some(Part::Core),
    };
    let function = |source: &Source| {
        let Locked { sha256, signature, .. } = source.locked;
        let mut sql = format!("{}\n{}", source.sql, comment(source.locked.name(), source.sql));
        if !signature.starts_with('_') {
            // The application may have a function of the same name.
            let [of_name, of_signature] =
                [source.locked.name(), signature].map(|which| format!("COMMENT ON FUNCTION rate_limit.{which} IS"));
            sql = sql.replace(&of_name, &of_signature);
        }
        let sql = schema.render(&sql);
        part_of(source.condition).map(|part| Function { signature, part, sha256, sql })
    };
    SOURCES.iter().filter_map(function).collect()
}

/// The names of the functions of these parts, with those that replace functions of the queue.
pub(super) fn names(parts: &[Part]) -> impl Iterator<Item = &'static str> {
    of(parts).map(|source| source.locked.name())
}

fn of(parts: &[Part]) -> impl Iterator<Item = &'static Source> {
    SOURCES.iter().filter(|source| match source.condition {
        Condition::Part(part) => parts.contains(&part),
        Condition::WithoutQueue => parts.contains(&Part::Core),
    })
}

/// The signatures of the functions of these parts, with those that replace functions of the queue.
pub(super) fn signatures(parts: &[Part]) -> impl Iterator<Item = &'static str> {
    let mut signatures: Vec<&str> = of(parts).map(|source| source.locked.signature).collect();
    signatures.dedup();
    signatures.into_iter()
}

#[cfg(test)]
mod tests {
    use super::{Locked, SOURCES, functions};
    use crate::migrate::Part;
    use crate::sql::Schema;

    #[test]
    fn the_lock_file_has_one_line_for_each_function() {
        let mut locked: Vec<_> = Locked::all().map(|locked| (locked.signature, locked.file)).collect();
        let sources: Vec<_> = SOURCES.iter().map(|source| (source.locked.signature, source.locked.file)).collect();
        locked.sort_unstable();
        let mut sorted = sources.clone();
        sorted.sort_unstable();
        assert_eq!(sorted, locked);
        assert!(SOURCES.iter().all(|source| source.locked.sha256.len() == 64));
    }

    #[test]
    fn each_selection_of_parts_has_each_signature_once() {
        for parts in [Part::ALL, &[Part::Core], &[Part::Queue]] {
            let mut signatures: Vec<_> =
                functions(&Schema::default(), parts).iter().map(|function| function.signature).collect();
            let count = signatures.len();
            signatures.dedup();
            assert_eq!(signatures.len(), count);
        }
        let of = |parts: &[Part]| functions(&Schema::default(), parts).len();
        assert_eq!(of(&[Part::Core]) + of(&[Part::Queue]), of(Part::ALL) + 2);
    }
}
