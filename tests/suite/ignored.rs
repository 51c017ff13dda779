//! `cargo test` leaves no test out in silence: each ignored test names the command that runs it.

use std::fs;
use std::path::{Path, PathBuf};

use crate::support::guide::chapter;

fn root() -> PathBuf {
    env!("CARGO_MANIFEST_DIR").into()
}

fn rust_files(dir: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(dir).expect("a folder").map(|entry| entry.expect("an entry").path());
    let files = entries.flat_map(|path| if path.is_dir() { rust_files(&path) } else { vec![path] });
    files.filter(|path| path.extension().is_some_and(|extension| extension == "rs")).collect()
}

#[test]
fn every_ignored_test_names_the_command_that_runs_it() {
    let contributing = fs::read_to_string(root().join("CONTRIBUTING.md")).expect("CONTRIBUTING.md");
    let mut ignored = 0;
    for path in ["src", "tests", "cli/src", "cli/tests"].iter().flat_map(|dir| rust_files(&root().join(dir))) {
        for line in fs::read_to_string(&path).expect("a text").lines().map(str::trim) {
            if !line.starts_with("#[ignore") {
                continue;
            }
            let command = line.strip_suffix("\"]").and_then(|line| line.rsplit_once(": run "));
            let (_, command) = command.unwrap_or_else(|| panic!("{}: {line} names no command", path.display()));
            assert!(root().join(command).is_file(), "{}: there is no {command}", path.display());
            assert!(contributing.contains(&format!("`{command}`")), "CONTRIBUTING.md does not explain {command}");
            ignored += 1;
        }
    }
    assert!(ignored > 20, "{ignored}");
}

/// `examples/other_drivers` compiles and tests it there.
#[test]
fn rust_code_in_the_guide_that_is_no_documentation_test_is_in_an_example() {
    let example = rust_files(&root().join("examples/drivers/src")).into_iter().map(fs::read_to_string);
    let example: String = example.map(|text| text.expect("a text")).collect();
    let lines: Vec<&str> = example.lines().map(str::trim).collect();
    let blocks = chapter("drivers").split("```rs\n").skip(1).filter_map(|block| block.split("```").next());
    let mut compared = 0;
    for line in blocks.flat_map(str::lines) {
        assert!(lines.contains(&line.trim()), "examples/drivers has no line {line:?}");
        compared += 1;
    }
    assert!(compared > 5, "{compared}");
}

/// CONTRIBUTING.md and the justfile have the same commands, and the scripts that they call exist.
#[test]
fn the_justfile_has_the_commands_of_contributing() {
    let read = |file: &str| fs::read_to_string(root().join(file)).expect(file);
    let (contributing, justfile) = (read("CONTRIBUTING.md"), read("justfile"));
    let recipes: Vec<&str> = justfile
        .lines()
        .filter(|line| line.starts_with(char::is_alphabetic) && line.ends_with(':'))
        .filter_map(|line| line.split([' ', ':']).next())
        .filter(|name| *name != "default")
        .collect();
    assert!(recipes.len() > 8, "{recipes:?}");
    for recipe in &recipes {
        let named = [format!("`just {recipe}`"), format!("`just {recipe} ")];
        assert!(named.iter().any(|name| contributing.contains(name)), "CONTRIBUTING.md lacks just {recipe}");
    }
    for name in contributing.split("`just ").skip(1).filter_map(|rest| rest.split(['`', ' ']).next()) {
        assert!(recipes.contains(&name), "the justfile lacks {name}");
    }
    for script in justfile.split_whitespace().filter(|word| word.starts_with("tests/") || word.starts_with(".ci/")) {
        assert!(root().join(script).is_file(), "there is no {script}");
    }
    let workflow = read(".github/workflows/ci.yml");
    let (_, parts) = workflow.split_once("part: [").expect("the parts");
    let script = read(".ci/run");
    for part in parts.split(']').next().expect("the parts").split(", ").filter_map(|part| part.split(' ').next()) {
        assert!(script.contains(&format!("\n{part}() ")), ".ci/run has no part {part}");
    }
}
