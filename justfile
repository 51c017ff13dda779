# The commands of CONTRIBUTING.md. `just` lists them.

[private]
default:
    @just --list --unsorted

# Shows limits at work on real calls
demo *arguments:
    cargo run -- demo {{ arguments }}

# Tests everything that needs only Rust and Node, or the library's tests with one of these words in their names
test *words:
    {{ if words == "" { "cargo test --all-features" } else { "cargo test --all-features --test suite -- " + words } }}

# Tests the tool
tool *words:
    cargo test --all-features -p pg-limiter-cli -- {{ words }}

# Formatting and Clippy
lint:
    .ci/run lint

# Runs the suite on these versions of PostgreSQL, or on all
matrix *versions:
    tests/matrix {{ versions }}

# Measures workloads beside their comparisons, such as lone,hot
bench *workloads:
    cargo bench --bench peers --features embedded -- {{ if workloads == "" { "" } else { "--only " + replace(workloads, " ", ",") } }}

# Opens the documentation
docs:
    cargo doc --no-deps --all-features --open

# Rewrites the files that tests compare with: the lock of SQL functions, the list of tables, the public API
bless:
    BLESS=1 cargo test --all-features -p pg-limiter --test suite -- sql_sources
    BLESS=1 tests/public_api/check

# Runs every check, or these parts: readme lint checks long matrix programs benches
ci *parts:
    .ci/run {{ parts }}

# Checks everything that a release needs, but uploads nothing
release:
    tests/release
