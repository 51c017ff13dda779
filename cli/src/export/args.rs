use std::path::PathBuf;

use clap::{Args, ValueEnum};

#[derive(Args, Debug)]
pub(crate) struct ExportArgs {
    /// Output format
    #[arg(long, value_enum, value_name = "FORMAT", default_value = "json")]
    pub(super) format: Format,
    /// Exit with 1 if no row matches, or none for one of the given limits; if no row matches at all, no file is written
    #[arg(long)]
    pub(super) must_exist: bool,
    /// Write to this file instead of standard output
    #[arg(long, value_name = "FILE")]
    pub(super) output: Option<PathBuf>,
    /// Export only this limit; repeat for several limits
    #[arg(long, value_name = "NAME")]
    pub(super) limit: Vec<String>,
    /// Export only this key, given as it is stored
    #[arg(long, value_name = "KEY")]
    pub(super) key: Option<String>,
    /// Add the balance of each bucket at the moment of the export, for the limits that this file defines: TOML, or JSON
    /// if its name ends in .json; `-` is standard input
    #[arg(long, value_name = "FILE")]
    pub(super) limits: Option<PathBuf>,
    /// For CSV that is opened in a spreadsheet: put a ' before names and keys that could be read as formulas
    #[arg(long)]
    pub(super) no_formulas: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(super) enum Format {
    /// One JSON object per line
    Json,
    /// CSV with a header line (RFC 4180)
    Csv,
}
