//! The commands `completions` and `man`, made from the definitions of the arguments.

use std::path::PathBuf;

use clap::{Args, Command};
use clap_complete::Shell;

use crate::error::CliError;
use crate::output;

#[derive(Args, Debug)]
pub(super) struct CompletionsArgs {
    /// The shell
    shell: Shell,
}

#[derive(Args, Debug)]
pub(super) struct ManArgs {
    /// Write a page for each command into this folder, such as /usr/local/share/man/man1, instead of printing the first
    #[arg(long, value_name = "DIR")]
    to: Option<PathBuf>,
}

/// Prints the completions for a shell.
pub(super) fn completions(args: &CompletionsArgs, mut command: Command) -> Result<(), CliError> {
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut command, "pg-limiter", &mut script);
    print(&script)
}

/// Prints the man page, or writes those of all commands.
pub(super) fn man(args: &ManArgs, command: Command) -> Result<(), CliError> {
    if let Some(dir) = &args.to {
        clap_mangen::generate_to(command, dir)
            .map_err(|error| CliError::usage(format!("--to {}: {error}; name a folder to write to", dir.display())))?;
        return Ok(());
    }
    let mut page = Vec::new();
    clap_mangen::Man::new(command).render(&mut page).expect("writing to memory does not fail");
    print(&page)
}

fn print(text: &[u8]) -> Result<(), CliError> {
    output::line(String::from_utf8_lossy(text).trim_end())
}
