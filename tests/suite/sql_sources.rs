//! `sql/functions.lock` has a line for each function in `sql/`: the SHA-256 of its definition, its file, and its signature.
//! `migrations/tables.txt` lists what the migrations create. After a change in `sql/` or `migrations/`,
//! `BLESS=1 cargo test --all-features --test suite sql_sources` writes both.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use pg_limiter::Schema;
use pg_limiter::migrate::{Part, functions, migrations};
use pg_limiter::sqlx::{self, PgPool};

use crate::support::Database;

/// The SHA-256 of each migration. A released file never changes: databases that have it would not get the change.
const FROZEN: [&str; 2] = [
    "be52e7c911df09303e8ab4e964904963ba927a338f7d9be9b973d481582313c9",
    "5d79657dfeb80f5c28fb2c8b29a1904691e793a69a066d25458761e3a1041964",
];

const CREATE: &str = "CREATE OR REPLACE FUNCTION rate_limit.";

fn root() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR"))
}

/// The files with functions: their paths in `sql/`, and their texts.
fn sources() -> BTreeMap<String, String> {
    fn collect(folder: &Path, found: &mut BTreeMap<String, String>) {
        for entry in std::fs::read_dir(folder).expect("a folder") {
            let path = entry.expect("an entry").path();
            let name =
                path.strip_prefix(root().join("sql")).expect("a path in sql/").to_str().expect("UTF-8").to_owned();
            if path.is_dir() {
                if name != "tests" {
                    collect(&path, found);
                }
            } else if name.ends_with(".sql") {
                let text = std::fs::read_to_string(&path).expect("a source");
                if text.contains(CREATE) {
                    found.insert(name, text);
                }
            }
        }
    }
    let mut found = BTreeMap::new();
    collect(&root().join("sql"), &mut found);
    found
}

/// The functions of a file, each with the comment above it.
fn split(text: &str) -> Vec<String> {
    let lines: Vec<&str> = text.lines().collect();
    let creates = (0..lines.len()).filter(|at| lines[*at].starts_with(CREATE));
    let start_of = |create: usize| (0..create).rev().find(|at| !lines[*at].starts_with("--")).map_or(0, |at| at + 1);
    let starts: Vec<usize> = std::iter::once(0).chain(creates.skip(1).map(start_of)).collect();
    let ends = starts.iter().skip(1).copied().chain([lines.len()]);
    starts.iter().zip(ends).map(|(start, end)| lines[*start..end].join("\n").trim().to_owned() + "\n").collect()
}

/// The objects in the schema: their type, name and definition.
async fn installed(pool: &PgPool, what: &[&str]) -> BTreeSet<(String, String, String)> {
    let sql = include_str!("../../sql/install/installed.sql");
    let rows: Vec<(String, String, String)> = sqlx::query_as(sql).fetch_all(pool).await.expect("the catalogs");
    rows.into_iter().filter(|(kind, ..)| what.contains(&kind.as_str())).collect()
}

async fn with_tables(parts: &[Part]) -> Database {
    let database = Database::empty().await;
    database.execute("CREATE SCHEMA rate_limit").await;
    database.execute(include_str!("../../sql/install/history.sql")).await;
    for migration in migrations(&Schema::default(), parts) {
        database.execute(&migration.sql).await;
    }
    database
}

/// The lines of the functions in these files: the signature first, to sort by, then the line.
async fn lines(parts: &[Part], is_wanted: fn(&str) -> bool) -> Vec<(String, String)> {
    let database = with_tables(parts).await;
    let mut lines = Vec::new();
    for (file, text) in sources().into_iter().filter(|(file, _)| is_wanted(file)) {
        for sql in split(&text) {
            let before = installed(&database.pool, &["function"]).await;
            database.execute(&format!("SET check_function_bodies = off; {sql}")).await;
            let after = installed(&database.pool, &["function"]).await;
            let made: Vec<_> = after.difference(&before).collect();
            let [(_, signature, hash)] = made.as_slice() else { panic!("{file} makes {made:?}") };
            lines.push((signature.clone(), format!("{hash} {file} {signature}")));
        }
    }
    lines
}

fn is_without_queue(file: &str) -> bool {
    file.starts_with("install/without_queue/")
}

fn is_blessed() -> bool {
    std::env::var_os("BLESS").is_some()
}

const STALE: &str = "differs from the sources; run: BLESS=1 cargo test --all-features --test suite sql_sources";

fn compare(file: &str, text: &str) {
    let path = root().join(file);
    if is_blessed() {
        std::fs::write(&path, text).expect("write the file");
    }
    let shipped = std::fs::read_to_string(&path).unwrap_or_default();
    assert!(shipped == *text, "{file} {STALE}\n{text}");
}

#[tokio::test]
async fn the_lock_file_matches_the_functions() {
    let mut all = lines(Part::ALL, |file| !is_without_queue(file)).await;
    all.extend(lines(&[Part::Core], is_without_queue).await);
    all.sort();
    let text: String = all.iter().map(|(_, line)| format!("{line}\n")).collect();
    compare("sql/functions.lock", &text);
}

/// Each file is in the list of its part.
#[test]
fn the_library_has_every_function_in_its_part() {
    for parts in [Part::ALL, &[Part::Core], &[Part::Queue]] {
        let is_wanted = |file: &str| match (file.starts_with("queue/"), is_without_queue(file)) {
            (true, _) => parts.contains(&Part::Queue),
            (_, true) => !parts.contains(&Part::Queue),
            _ => parts.contains(&Part::Core),
        };
        let files = sources().into_iter().filter(|(file, _)| is_wanted(file));
        // The library adds the comments of functions that only other functions call: see statistics.rs.
        let code = |sql: &str| sql.split("\nCOMMENT ON").next().unwrap_or_default().trim().to_owned();
        let mut expected: Vec<String> =
            files.flat_map(|(_, text)| split(&text)).map(|function| code(&function)).collect();
        let mut shipped: Vec<_> =
            functions(&Schema::default(), parts).into_iter().map(|function| code(&function.sql)).collect();
        expected.sort();
        shipped.sort();
        assert!(shipped == expected, "src/migrate/functions.rs does not list the files in sql/ ({parts:?})");
    }
}

#[tokio::test]
async fn the_list_of_tables_matches_the_migrations() {
    let kinds = ["table", "column", "index"];
    let core = installed(&with_tables(&[Part::Core]).await.pool, &kinds).await;
    let all = installed(&with_tables(Part::ALL).await.pool, &kinds).await;
    let queue: BTreeSet<_> = all.difference(&core).cloned().collect();
    assert_eq!(core.len() + queue.len(), all.len(), "the migrations of the queue change tables of the core");
    let mut list = String::new();
    for (part, objects) in [("core", core), ("queue", queue)] {
        let space = if list.is_empty() { "" } else { "\n" };
        writeln!(list, "{space}[{part}]").expect("a string takes it");
        for (what, which, definition) in objects {
            writeln!(list, "{what} {which}: {definition}").expect("a string takes it");
        }
    }
    compare("migrations/tables.txt", &list);
}

#[test]
fn released_migrations_never_change() {
    let all = migrations(&Schema::default(), Part::ALL);
    let found: Vec<&str> = all.iter().map(|migration| &*migration.sha256).collect();
    assert_eq!(found, FROZEN, "add a migration instead of changing one; give a new one its SHA-256 here");
    let names: BTreeSet<String> =
        all.iter().map(|migration| format!("{:04}_{}.sql", migration.version, migration.name)).collect();
    let files = std::fs::read_dir(root().join("migrations")).expect("a folder");
    let files = files.map(|file| file.expect("a file").file_name().into_string().expect("a name"));
    assert_eq!(files.filter(|name| name.ends_with(".sql")).collect::<BTreeSet<_>>(), names);
    assert_eq!(
        all.iter().map(|migration| migration.name).collect::<BTreeSet<_>>().len(),
        all.len(),
        "a name occurs twice"
    );
}

/// `Schema::render` replaces `rate_limit.`, wherever it is. So it stands before the name of an object, and at the end of the
/// schema's own name; a parameter is qualified by its function, which has another name.
#[test]
fn rate_limit_and_a_dot_appear_only_as_the_schema_name() {
    let is_of_name = |c: char| c.is_ascii_alphanumeric() || c == '_';
    let tables = migrations(&Schema::default(), Part::ALL).into_iter().map(|migration| migration.sql);
    let functions = functions(&Schema::default(), Part::ALL).into_iter().map(|function| function.sql);
    let files = "install/callers install/claim install/history install/installed install/owner install/rights \
                 install/schema install/uninstall install/untrusted engines/delegate engines/distribute";
    let statements = files
        .split(' ')
        .map(|name| std::fs::read_to_string(root().join("sql").join(name).with_extension("sql")).expect("a file"));
    for sql in tables.chain(functions).chain(statements) {
        for (number, line) in sql.lines().enumerate() {
            let code = line.split("--").next().unwrap_or_default();
            for (at, marker) in code.match_indices("rate_limit.") {
                let before = code[..at].chars().next_back();
                assert!(before.is_none_or(|c| " ($".contains(c)), "line {}: {line}", number + 1);
                let after = &code[at + marker.len()..];
                let is_name = after.starts_with(|c: char| is_of_name(c) && !c.is_ascii_digit());
                let is_schema = code[..at].ends_with("$schema$") && after.starts_with("$schema$");
                assert!(is_name || is_schema, "line {}: {line}", number + 1);
                // The name of a schema may contain quotes.
                assert!(code[..at].matches('\'').count() % 2 == 0, "line {}: {line}", number + 1);
            }
            // Nothing else has the name of the schema: no function, and so no qualified parameter.
            for (at, name) in code.match_indices("rate_limit") {
                let before = code[..at].chars().next_back();
                let after = code[at + name.len()..].chars().next();
                let is_whole = !before.is_some_and(is_of_name) && !after.is_some_and(is_of_name);
                assert!(!is_whole || after == Some('.') || code[..at].ends_with(", '"), "line {}: {line}", number + 1);
            }
            assert!(!code.contains("public"), "line {}: {line}", number + 1);
        }
    }
}

/// One style: lines of at most 130 columns, two spaces for each level, no tabs, and nothing at the end of a line.
#[test]
fn the_sql_has_one_style() {
    fn files(folder: &Path) -> Vec<PathBuf> {
        let entries = std::fs::read_dir(folder).expect("a folder").map(|entry| entry.expect("an entry").path());
        entries.flat_map(|path| if path.is_dir() { files(&path) } else { vec![path] }).collect()
    }
    let files = files(&root().join("sql")).into_iter().filter(|path| path.extension().is_some_and(|ext| ext == "sql"));
    let mut faults = Vec::new();
    for path in files {
        let text = std::fs::read_to_string(&path).expect("a source");
        for (number, line) in text.lines().enumerate() {
            let indent = line.len() - line.trim_start_matches(' ').len();
            let is_wide = line.chars().count() > 130;
            if is_wide || line.contains('\t') || line.ends_with(' ') || indent % 2 == 1 {
                faults.push(format!("{}:{}: {line}", path.display(), number + 1));
            }
        }
    }
    assert!(faults.is_empty(), "{}", faults.join("\n"));
}

/// Functions stay readable: at most 150 lines, and 45 variables including parameters.
#[tokio::test]
async fn no_function_is_too_long_to_follow() {
    let database = Database::migrated().await;
    let sql = "SELECT proname::text, coalesce(cardinality(proallargtypes), pronargs::integer), prosrc FROM pg_proc \
               WHERE pronamespace = 'rate_limit'::regnamespace";
    let functions: Vec<(String, i32, String)> =
        sqlx::query_as(sql).fetch_all(&database.pool).await.expect("the functions");
    assert!(functions.len() > 80, "{}", functions.len());
    for (name, parameters, body) in functions {
        assert!(body.lines().count() <= 150, "{name} has {} lines", body.lines().count());
        let declared = body.split_once("DECLARE\n").and_then(|(_, rest)| rest.split_once("\nBEGIN\n"));
        let declared = declared.map_or(0, |(declared, _)| {
            let code = declared.lines().map(|line| line.split("--").next().unwrap_or_default());
            code.map(|line| line.matches(';').count()).sum()
        });
        let variables = parameters as usize + declared;
        assert!(variables <= 45, "{name} has {variables} variables, {declared} of them declared");
    }
}
