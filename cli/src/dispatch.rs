use std::process::ExitCode;

use clap::FromArgMatches;
use clap::error::ErrorKind;

use crate::args::{Arguments, Command, command};
use crate::database::Database;
use crate::error::CliError;
use crate::{
    bench, decide, demo, doctor, exec, export, limits, migrate, output, queue, removal, replay, shell, simulate, top,
    ui,
};
use pg_limiter::Op;

/// Runs the tool with the arguments of this process, and returns its exit code.
pub fn main() -> ExitCode {
    let parsed = command().try_get_matches().and_then(|matches| Arguments::from_arg_matches(&matches));
    let arguments = match parsed {
        Ok(arguments) => arguments,
        Err(error) => {
            // clap prints help to stdout and errors to stderr. Ignore a closed stream.
            let _ = error.print();
            let asked_for = matches!(error.kind(), ErrorKind::DisplayHelp | ErrorKind::DisplayVersion);
            return ExitCode::from(if asked_for { 0 } else { 2 });
        }
    };
    let runtime = match tokio::runtime::Builder::new_multi_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => {
            output::note(format!("cannot start the runtime: {error}"));
            return ExitCode::from(3);
        }
    };
    match runtime.block_on(run(arguments)) {
        Ok(code) => code,
        Err(error) => {
            if !matches!(error, CliError::OutputClosed) {
                output::note(&error);
            }
            ExitCode::from(error.exit_code())
        }
    }
}

async fn run(arguments: Arguments) -> Result<ExitCode, CliError> {
    let database = Database::new(arguments.database)?;
    match arguments.command {
        Command::Demo(args) => demo::run(&args, database).await?,
        Command::Bench(args) => bench::run(args, database).await?,
        Command::Grants(args) => migrate::grants(&args, &database)?,
        Command::Peek(args) => decide::peek(args, database).await?,
        Command::Block(args) => decide::block(args, database).await?,
        Command::Unblock(args) => decide::unblock(args, database).await?,
        Command::Forget(args) => removal::forget(args, database).await?,
        Command::Prune(args) => removal::prune(args, database).await?,
        Command::Simulate(args) => simulate::run(args, database).await?,
        Command::Replay(args) => replay::run(args, database).await?,
        Command::Ui(args) => ui::run(args, database).await?,
        Command::Completions(args) => shell::completions(&args, command())?,
        Command::Man(args) => shell::man(&args, command())?,
        // The exit code of these depends on what they find.
        Command::Migrate(args) => return migrate::run(args, database).await,
        Command::Limit(args) => return decide::decide(Op::Limit, args, database).await,
        Command::Check(args) => return decide::decide(Op::Check, args, database).await,
        Command::Reset(args) => return removal::reset(args, database).await,
        Command::Limits(command) => return limits::run(command, database).await,
        Command::Queue(command) => return queue::run(command, database).await,
        Command::Top(args) => return top::run(args, database).await,
        Command::Doctor(args) => return doctor::run(args, database).await,
        Command::Exec(args) => return exec::run(args, database).await,
        Command::Export(args) => return export::run(args, database).await,
    }
    Ok(ExitCode::SUCCESS)
}
