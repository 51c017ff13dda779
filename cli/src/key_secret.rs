//! The secret with which the application hashes its keys, if it does.

use std::path::PathBuf;

use clap::Args;

use crate::error::CliError;
use crate::input;
use pg_limiter::KeySecret;

const VARIABLE: &str = "PG_LIMITER_KEY_SECRET_FILE";

#[derive(Args, Debug)]
#[group(skip)]
pub(super) struct KeySecretArgs {
    /// Read the secret with which the application hashes its keys from this file. A line break at the end of the file is
    /// ignored; `-` is standard input [default: the file named by the environment variable PG_LIMITER_KEY_SECRET_FILE]
    #[arg(long, value_name = "FILE")]
    key_secret_file: Option<PathBuf>,
}

impl KeySecretArgs {
    /// Reads the secret if a file is named. An empty variable counts as unset.
    pub(super) fn read(&self) -> Result<Option<KeySecret>, CliError> {
        let named = || std::env::var_os(VARIABLE).filter(|name| !name.is_empty()).map(PathBuf::from);
        let Some(path) = self.key_secret_file.clone().or_else(named) else { return Ok(None) };
        let bytes = input::read(&path)?;
        let secret = bytes.strip_suffix(b"\n").map_or(&*bytes, |line| line.strip_suffix(b"\r").unwrap_or(line));
        match KeySecret::new(secret) {
            Ok(secret) => Ok(Some(secret)),
            Err(error) => Err(CliError::usage(format!("{}: {error}", input::name(&path)))),
        }
    }
}
