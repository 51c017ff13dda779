use std::path::PathBuf;

use clap::{Args, ValueEnum};

#[derive(Args, Debug)]
pub(crate) struct ExportArgs {
    /// How to write them
    #[arg(long, value_enum, value_name = "FORMAT", default_value = "json")]
    pub(super) format: Format,
    /// Exit with 1 if there is no row, or none of a limit that is named; then no file is written if there is none at all
    #[arg(long)]
    pub(super) must_exist: bool,
    /// Write to this file instead of standard output
    #[arg(long, value_name = "FILE")]
    pub(super) output: Option<PathBuf>,
    /// Of this limit only; several times for several
    #[arg(long, value_name = "NAME")]
    pub(super) limit: Vec<String>,
    /// Of this key only, as it is stored
    #[arg(long, value_name = "KEY")]
    pub(super) key: Option<String>,
    /// Add the balance of each bucket at the moment of the export, for the limits in this file: TOML, or JSON if it is
    /// called *.json; `-` is standard input
    #[arg(long, value_name = "FILE")]
    pub(super) limits: Option<PathBuf>,
    /// For CSV that people open in a spreadsheet: put a ' before names and keys that it would take for a formula
    #[arg(long)]
    pub(super) no_formulas: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(super) enum Format {
    /// One object a line
    Json,
    /// With a line of headings (RFC 4180)
    Csv,
}
