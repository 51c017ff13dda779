//! The command-line tool: tries, inspects and operates rate limits in PostgreSQL. See `pg-limiter --help`.
#![forbid(unsafe_code)]

use std::process::ExitCode;

fn main() -> ExitCode {
    pg_limiter_cli::main()
}
