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
