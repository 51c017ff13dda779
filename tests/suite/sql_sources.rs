//! `migrations/functions/` has a file for each function in `sql/`, with its signature and its hash in the first two lines.
//! After a change in `sql/`, `BLESS=1 cargo test --all-features --test suite sql_sources` writes it again, together with
//! `migrations/tables.txt`, which lists what the numbered migrations create. The numbered migrations never change.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::path::PathBuf;

use pg_limiter::Schema;
use pg_limiter::migrate::{functions, migrations};
use pg_limiter::sqlx::{self, PgPool};

use crate::support::Database;

/// The sources in `sql/` that have functions.
const SOURCES: &[&str] = &[
    "rate_limit_is_distributed",
    "late_after",
    "rate_limit_rows",
    "clock",
    "phase",
    "validate",
    "kinds/token_bucket",
    "kinds/fixed_window",
    "kinds/sliding_window",
    "kinds/concurrency",
    "kinds/calendar_window",
    "kinds",
    "item",
    "decide_rows",
    "amounts",
    "guard",
    "write",
    "shards/draw",
    "shards/rows",
    "shards/gather",
    "shards/drain",
    "shards/level",
    "shards/find",
    "decide_each",
    "take_few",
    "take_one",
    "asked",
    "retake",
    "rate_limit_decide_sums",
    "rate_limit_take_ample",
    "rate_limit_decide",
    "rate_limit_decide_leases",
    "rate_limit_take_slots",
    "rate_limit_decide_one",
    "validate_item",
    "length",
    "validate_element",
    "rate_limit_take",
    "held",
    "single",
    "several",
    "rate_limit",
    "rate_limit_all",
    "rate_limit_check",
    "rate_limit_check_all",
    "rate_limit_charge_all",
    "rate_limit_credit_all",
    "rate_limit_enforce",
    "rate_limit_reset",
    "rate_limit_reset_name",
    "rate_limit_acquire",
    "rate_limit_prune",
    "rate_limit_names",
    "rate_limit_forget",
    "rate_limit_block",
    "rate_limit_unblock",
    "rate_limit_blocked",
    "rate_limit_window",
    "queue/again",
    "queue/ask_slots",
    "queue/ask_to_start",
    "queue/claim",
    "queue/claimed",
    "queue/claimed_jobs",
    "queue/correct",
    "queue/correct_started",
    "queue/dead_jobs_prune",
    "queue/decide_started",
    "queue/enqueue",
    "queue/enqueue_jobs",
    "queue/enqueue_slots",
    "queue/forget_jobs",
    "queue/in_line",
    "queue/job_again",
    "queue/job_cancel",
    "queue/job_done",
    "queue/job_extend",
    "queue/job_requeue",
    "queue/job_settle",
    "queue/jobs_discard",
    "queue/jobs_lapsed",
    "queue/jobs_prune",
    "queue/lag",
    "queue/lock_due",
    "queue/lock_slots",
    "queue/pay_ahead",
    "queue/plan_claim",
    "queue/queue_gauges",
    "queue/repay_jobs",
    "queue/ring",
    "queue/start_jobs",
    "queue/stop_groups",
    "queue/unpay",
    "queue/unpay_cancelled",
    "queue/wake_groups",
    "queue/write_jobs",
    "answers/decide_once",
    "answers/prune",
];

/// The SHA-256 of each migration. A released file never changes: databases that have it would not get the change.
const FROZEN: [&str; 6] = [
    "111c53f0d8b97136d3726823cb9b007d2d4258216486fbdd86955c497b60406b",
    "97d61e500e11836d228e9367c69a654d450f320b8b2fc261a8218013d3cbdd6e",
    "19fb17704da90c54c986986e0c9ba69b170932600324d55147f42c5d403d566b",
    "b927e873ca4a48a234fd7ffa79cc61a799f98daef517d44975161467cd083e5f",
    "f5e699d8d786d2a67220858264a9cce1d608dda554ca5dcd47e4a4fdb6e774be",
    "91eca91cdb9a8055d5433c7ba2e4a0fd5d0d032ae4f3d0d67593285c7b4d3d74",
];

const CREATE: &str = "CREATE OR REPLACE FUNCTION public.";

fn root() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR"))
}

/// The functions in the sources by file name, each with the comment above it.
fn compose() -> BTreeMap<String, String> {
    let mut composed = BTreeMap::new();
    for name in SOURCES {
        let source =
            std::fs::read_to_string(root().join("sql").join(name).with_extension("sql")).expect("a source in sql/");
        let lines: Vec<&str> = source.trim_end().lines().collect();
        let creates: Vec<usize> = (0..lines.len()).filter(|at| lines[*at].starts_with(CREATE)).collect();
        let Some((_, later)) = creates.split_first() else {
            composed.insert(stem(name), lines.join("\n") + "\n"); // The server composes this one.
            continue;
        };
        let start_of =
            |create: &usize| (0..*create).rev().find(|at| !lines[*at].starts_with("--")).map_or(0, |at| at + 1);
        let starts: Vec<usize> = std::iter::once(0).chain(later.iter().map(start_of)).collect();
        for (place, start) in starts.iter().enumerate() {
            let end = starts.get(place + 1).copied().unwrap_or(lines.len());
            let text = lines[*start..end].join("\n");
            let named = lines[creates[place]][CREATE.len()..].split('(').next().unwrap_or_default().to_owned();
            let file = if composed.contains_key(&named) { stem(name) } else { named };
            composed.insert(file, text.trim().to_owned() + "\n");
        }
    }
    composed
}

fn stem(name: &str) -> String {
    name.rsplit('/').next().unwrap_or_default().to_owned()
}

/// The objects in the schema: their type, name and definition.
async fn installed(pool: &PgPool, what: &[&str]) -> BTreeSet<(String, String, String)> {
    let sql = include_str!("../../sql/install/installed.sql");
    let rows: Vec<(String, String, String)> = sqlx::query_as(sql).fetch_all(pool).await.expect("the catalogs");
    rows.into_iter().filter(|(kind, ..)| what.contains(&kind.as_str())).collect()
}

/// The files, each with the signature and the hash that the server computes.
async fn with_hashes() -> BTreeMap<String, String> {
    let database = Database::empty().await;
    database.execute(include_str!("../../sql/install/history.sql")).await;
    for migration in migrations(&Schema::default()) {
        database.execute(&migration.sql).await;
    }
    let mut files = BTreeMap::new();
    let mut before = BTreeSet::new();
    for (file, text) in compose() {
        database.execute(&format!("SET check_function_bodies = off; {text}")).await;
        let after = installed(&database.pool, &["function"]).await;
        let made: Vec<_> = after.difference(&before).collect();
        let [(_, signature, hash)] = made.as_slice() else { panic!("{file} makes {made:?}") };
        files.insert(file, format!("-- {signature}\n-- SHA-256: {hash}\n\n{text}"));
        before = after;
    }
    files
}

fn is_blessed() -> bool {
    std::env::var_os("BLESS").is_some()
}

const STALE: &str = "is not what sql/ says; run: BLESS=1 cargo test --all-features --test suite sql_sources";

#[tokio::test]
async fn function_files_match_the_sources() {
    let folder = root().join("migrations/functions");
    let files = with_hashes().await;
    let names = std::fs::read_dir(&folder).expect("a folder").map(|file| file.expect("a file").path());
    for path in names {
        let name = path.file_stem().expect("a name").to_string_lossy().into_owned();
        if !files.contains_key(&name) {
            assert!(is_blessed(), "{} {STALE}", path.display());
            std::fs::remove_file(&path).expect("remove the file of a dropped function");
        }
    }
    for (name, text) in &files {
        let path = folder.join(name).with_extension("sql");
        if is_blessed() {
            std::fs::write(&path, text).expect("write the function");
        }
        let shipped = std::fs::read_to_string(&path).unwrap_or_default();
        assert!(shipped == *text, "{} {STALE}", path.display());
    }
    if !is_blessed() {
        let shipped: Vec<_> = functions(&Schema::default()).into_iter().map(|function| function.sql).collect();
        assert!(
            shipped == files.into_values().collect::<Vec<_>>(),
            "src/migrate/functions.rs does not list the folder"
        );
    }
}

#[tokio::test]
async fn the_list_of_tables_matches_the_migrations() {
    let database = Database::empty().await;
    database.execute(include_str!("../../sql/install/history.sql")).await;
    for migration in migrations(&Schema::default()) {
        database.execute(&migration.sql).await;
    }
    let mut list = String::new();
    for (what, which, definition) in installed(&database.pool, &["table", "column", "index"]).await {
        writeln!(list, "{what} {which}: {definition}").expect("a string takes it");
    }
    let path = root().join("migrations/tables.txt");
    if is_blessed() {
        std::fs::write(&path, &list).expect("write the list");
    }
    let shipped = std::fs::read_to_string(&path).unwrap_or_default();
    assert!(shipped == list, "migrations/tables.txt {STALE}\n{list}");
}

#[test]
fn released_migrations_never_change() {
    let found: Vec<String> = migrations(&Schema::default()).into_iter().map(|migration| migration.sha256).collect();
    assert_eq!(found, FROZEN, "add a migration instead of changing one; give a new one its SHA-256 here");
    let files = std::fs::read_dir(root().join("migrations")).expect("a folder");
    let names = files.map(|file| file.expect("a file").file_name().into_string().expect("a name"));
    assert_eq!(names.filter(|name| name.ends_with(".sql")).count(), FROZEN.len());
}

#[test]
fn public_appears_only_as_the_schema_name() {
    let tables = migrations(&Schema::default()).into_iter().map(|migration| migration.sql);
    let functions = functions(&Schema::default()).into_iter().map(|function| function.sql);
    let install = ["claim", "history", "installed", "untrusted"].map(|name| {
        std::fs::read_to_string(root().join("sql/install").join(name).with_extension("sql")).expect("a file")
    });
    for sql in tables.chain(functions).chain(install) {
        for (number, line) in sql.lines().enumerate() {
            let code = line.split("--").next().unwrap_or_default();
            for (at, _) in code.match_indices("public.") {
                let before = code[..at].chars().next_back();
                assert!(before.is_none_or(|c| " ($".contains(c)), "line {}: {line}", number + 1);
            }
        }
    }
}

/// Functions stay readable: at most 200 lines, and 45 variables including parameters.
#[tokio::test]
async fn no_function_is_too_long_to_follow() {
    let database = Database::migrated().await;
    let sql = "SELECT proname::text, coalesce(cardinality(proallargtypes), pronargs::integer), prosrc FROM pg_proc \
               WHERE pronamespace = 'public'::regnamespace AND proname LIKE 'rate\\_limit%'";
    let functions: Vec<(String, i32, String)> =
        sqlx::query_as(sql).fetch_all(&database.pool).await.expect("the functions");
    assert!(functions.len() > 80, "{}", functions.len());
    for (name, parameters, body) in functions {
        assert!(body.lines().count() <= 200, "{name} has {} lines", body.lines().count());
        let declared = body.split_once("DECLARE\n").and_then(|(_, rest)| rest.split_once("\nBEGIN\n"));
        let declared = declared.map_or(0, |(declared, _)| {
            let code = declared.lines().map(|line| line.split("--").next().unwrap_or_default());
            code.map(|line| line.matches(';').count()).sum()
        });
        let variables = parameters as usize + declared;
        assert!(variables <= 45, "{name} has {variables} variables, {declared} of them declared");
    }
}
