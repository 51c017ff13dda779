//! Try, inspect and operate rate limits inside PostgreSQL: `pg-limiter --help`.
#![forbid(unsafe_code)]

use std::process::ExitCode;

fn main() -> ExitCode {
    pg_limiter_cli::main()
}
