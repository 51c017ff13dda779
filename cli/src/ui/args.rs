use std::net::SocketAddr;
use std::path::PathBuf;

use clap::Args;

use crate::error::CliError;
use crate::key_secret::KeySecretArgs;

/// A shorter token could be found by trying.
const SHORTEST_TOKEN: usize = 16;
const VARIABLE: &str = "PG_LIMITER_UI_TOKEN";

#[derive(Args, Debug)]
pub(crate) struct UiArgs {
    /// Address to listen on; port 0 chooses a free port. If it is not a loopback address, visitors need a token
    #[arg(long, value_name = "IP:PORT", default_value = "127.0.0.1:8420")]
    pub(super) listen: SocketAddr,
    /// Show the balances of the limits that this file defines: TOML, or JSON if its name ends in .json; `-` is standard input
    /// [default: the limits that are stored in the database]
    #[arg(long, value_name = "FILE", conflicts_with = "demo")]
    pub(super) limits: Option<PathBuf>,
    /// Let visitors reset, credit and unblock keys, and requeue and cancel jobs
    #[arg(long)]
    pub(super) allow_changes: bool,
    /// Show short hashes instead of keys, made with a secret of this run
    #[arg(long)]
    pub(super) hide_keys: bool,
    /// Token that visitors need, 16 characters or more [default: the environment variable PG_LIMITER_UI_TOKEN; or else
    /// none on a loopback address, and a random one on any other]
    #[arg(long, value_name = "TOKEN")]
    token: Option<String>,
    /// Show a private server with live traffic on limits of every kind, instead of a database
    #[arg(long)]
    pub(super) demo: bool,
    #[command(flatten)]
    pub(super) secret: KeySecretArgs,
}

impl UiArgs {
    /// The token that was given. An empty variable counts as unset.
    pub(super) fn token(&self) -> Result<Option<String>, CliError> {
        let variable = || std::env::var(VARIABLE).ok().filter(|token| !token.is_empty());
        let Some(token) = self.token.clone().or_else(variable) else { return Ok(None) };
        let is_plain = token.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_.~".contains(&byte));
        if token.len() < SHORTEST_TOKEN || !is_plain {
            return Err(CliError::usage(format!(
                "the token is too short or has other characters: use {SHORTEST_TOKEN} or more letters, digits, -, _, . and ~"
            )));
        }
        Ok(Some(token))
    }
}
