//! The secret under which keys are stored, if they are hashed.

use std::path::PathBuf;

use clap::Args;

use crate::error::CliError;
use crate::input;
use pg_limiter::KeySecret;

const VARIABLE: &str = "PG_LIMITER_KEY_SECRET_FILE";

#[derive(Args, Debug)]
#[group(skip)]
pub(super) struct KeySecretArgs {
    /// The application hashes its keys under the secret in this file; a line break at its end is not part of it, `-` is
    /// standard input [default: the file that the environment variable PG_LIMITER_KEY_SECRET_FILE names]
    #[arg(long, value_name = "FILE")]
    key_secret_file: Option<PathBuf>,
}

impl KeySecretArgs {
    /// The secret, if a file is named. An empty variable counts as none.
    pub(super) fn read(self) -> Result<Option<KeySecret>, CliError> {
        let named = || std::env::var_os(VARIABLE).filter(|name| !name.is_empty()).map(PathBuf::from);
        let Some(path) = self.key_secret_file.or_else(named) else { return Ok(None) };
        let bytes = input::read(&path)?;
        let secret = bytes.strip_suffix(b"\n").map_or(&*bytes, |line| line.strip_suffix(b"\r").unwrap_or(line));
        match KeySecret::new(secret) {
            Ok(secret) => Ok(Some(secret)),
            Err(error) => Err(CliError::usage(format!("{}: {error}", input::name(&path)))),
        }
    }
}
