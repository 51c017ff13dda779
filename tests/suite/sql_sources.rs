//! `migrations/` is put together from `sql/`: one source for each function, one file for each kind of limit.
//! `BLESS=1 cargo test --test suite sql_sources` writes it anew after a change in `sql/`.
//!
//! In the sources, `--@kinds X` stands for the section `X` of every file in `sql/kinds/`, chosen by `kind`;
//! `--@include K.X` for the section `X` of the kind `K`; `--@include X` for the part `X` of the same file, or of a file
//! that it is put into, or else for the file `sql/parts/X.sql`.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// A migration: its file, what it is about, and its sources in `sql/`.
const MIGRATIONS: [(&str, &str, &[&str]); 3] = [
    (
        "migrations/0001_rate_limits.sql",
        "Rate limits in PostgreSQL: the table and its functions",
        &[
            "table",
            "clock",
            "phase",
            "flow",
            "full_at",
            "taken",
            "left_over",
            "reserved_wait",
            "asked",
            "validate",
            "decide",
            "rate_limit_take",
            "held",
            "single",
            "rate_limit",
            "rate_limit_check",
            "rate_limit_enforce",
            "rate_limit_reset",
            "rate_limit_prune",
            "privileges",
        ],
    ),
    (
        "migrations/0002_queue.sql",
        "The rate-limited queue: its tables and functions",
        &[
            "queue/table",
            "queue/enqueue",
            "queue/claim",
            "queue/again",
            "queue/finish",
            "queue/cancel",
            "queue/settle",
            "queue/requeue",
            "queue/prune",
            "queue/privileges",
        ],
    ),
    (
        "migrations/0003_answers.sql",
        "Idempotency keys: the answers that were given",
        &["answers/table", "answers/decide_once", "answers/prune", "answers/privileges"],
    ),
];
const HEADER: &str = "\
-- {}, in the schema public.
-- Put together from sql/ by `BLESS=1 cargo test --test suite sql_sources`: change it there.
-- For another schema, replace each `public.`. May be run again.

";

type Sections = BTreeMap<String, Vec<String>>;

struct Source {
    text: Vec<String>,
    parts: Sections,
}

fn root() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR"))
}

/// Splits at the lines that begin with `marker`; what stands before the first one is the text.
fn split(path: &Path, marker: &str) -> Source {
    let mut source = Source { text: Vec::new(), parts: Sections::new() };
    let mut current: Option<String> = None;
    for line in std::fs::read_to_string(path).expect("a source in sql/").lines() {
        if let Some(rest) = line.strip_prefix(marker) {
            let name = rest.split([':', ' ']).next().unwrap_or_default().to_owned();
            source.parts.insert(name.clone(), Vec::new());
            current = Some(name);
        } else {
            match &current {
                Some(name) => source.parts.get_mut(name).expect("inserted above").push(line.to_owned()),
                None => source.text.push(line.to_owned()),
            }
        }
    }
    for lines in source.parts.values_mut().chain([&mut source.text]) {
        while lines.last().is_some_and(|line| line.is_empty()) {
            lines.pop();
        }
    }
    source
}

fn kinds() -> BTreeMap<String, Sections> {
    let files = std::fs::read_dir(root().join("sql/kinds")).expect("sql/kinds");
    let paths = files.map(|file| file.expect("a file").path());
    paths
        .map(|path| {
            let name = path.file_stem().expect("a name").to_string_lossy().into_owned();
            (name, split(&path, "--@ ").parts)
        })
        .collect()
}

fn push(out: &mut Vec<String>, indent: &str, line: &str) {
    out.push(if line.is_empty() { String::new() } else { format!("{indent}{line}") });
}

fn expand(lines: &[String], indent: &str, parts: &Sections, kinds: &BTreeMap<String, Sections>, out: &mut Vec<String>) {
    for line in lines {
        let words = line.trim_start();
        let deeper = format!("{indent}{}", &line[..line.len() - words.len()]);
        if let Some(name) = words.strip_prefix("--@include ") {
            if let Some((kind, section)) = name.split_once('.') {
                expand(&kinds[kind][section], &deeper, parts, kinds, out);
            } else if let Some(part) = parts.get(name) {
                expand(part, &deeper, parts, kinds, out);
            } else {
                let mut file = split(&root().join("sql/parts").join(name).with_extension("sql"), "--@ part ");
                for (name, part) in parts {
                    file.parts.entry(name.clone()).or_insert_with(|| part.clone());
                }
                expand(&file.text, &deeper, &file.parts, kinds, out);
            }
        } else if let Some(name) = words.strip_prefix("--@kinds ") {
            let (name, chained) = name.strip_suffix(" else").map_or((name, false), |name| (name, true));
            let having: Vec<_> =
                kinds.iter().filter_map(|(kind, sections)| Some((kind, sections.get(name)?))).collect();
            assert!(!having.is_empty(), "no kind has a section {name}");
            for (place, (kind, section)) in having.iter().enumerate() {
                if name == "declare" {
                    section.iter().for_each(|line| push(out, &deeper, line));
                    continue;
                }
                let word = if place == 0 && !chained { "IF" } else { "ELSIF" };
                push(out, &deeper, &format!("{word} kind = '{kind}' THEN"));
                expand(section, &format!("{deeper}  "), parts, kinds, out);
            }
            if name != "declare" && !chained {
                push(out, &deeper, "END IF;");
            }
        } else {
            push(out, indent, line);
        }
    }
}

fn compose(about: &str, files: &[&str]) -> String {
    let kinds = kinds();
    let compose = |file: &&str| {
        let source = split(&root().join("sql").join(file).with_extension("sql"), "--@ part ");
        let mut out = Vec::new();
        expand(&source.text, "", &source.parts, &kinds, &mut out);
        out.join("\n") + "\n"
    };
    HEADER.replace("{}", about) + &files.iter().map(compose).collect::<Vec<_>>().join("\n")
}

#[test]
fn migrations_are_put_together_from_the_sources() {
    for (file, about, sources) in MIGRATIONS {
        let path = root().join(file);
        let composed = compose(about, sources);
        if std::env::var_os("BLESS").is_some() {
            std::fs::write(&path, &composed).expect("write the migration");
        }
        let shipped = std::fs::read_to_string(&path).unwrap_or_default();
        assert!(shipped == composed, "{file} is not what sql/ says; run: BLESS=1 cargo test --test suite sql_sources");
    }
}

#[test]
fn public_stands_only_where_the_schema_is_meant() {
    for (_, about, sources) in MIGRATIONS {
        for (number, line) in compose(about, sources).lines().enumerate() {
            let code = line.split("--").next().unwrap_or_default();
            for (at, _) in code.match_indices("public.") {
                let before = code[..at].chars().next_back();
                assert!(before.is_none_or(|c| c == ' ' || c == '('), "line {}: {line}", number + 1);
            }
        }
    }
}
