//! The command `top`: the limits, keys and queues of a database in use, in a terminal.

mod app;
mod columns;
mod screen;
#[cfg(test)]
mod tests;

use std::io::{self, IsTerminal};
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use clap::Args;
use ratatui::crossterm::event::{self, Event, KeyEventKind};
use tokio::sync::mpsc;

use crate::operate::live::{Live, pause};
use crate::signals::{Signals, exit_code};
use crate::text::parse_length;
use crate::{CliError, Database, Progress, Result, input, output};
use app::{App, Data, Filters, Next};
use columns::Style;

pub(crate) async fn run(args: TopArgs, database: &Database) -> Result<ExitCode> {
    let of_file = args.limits.as_deref().map(input::read_limits).transpose()?;
    // Before the screen is switched.
    let live = Live::open(&database.named()?, of_file).await?;
    let filters = [args.limit.clone(), args.key.clone(), args.queue.clone()];
    let app = App::new(filters, Style::of_locale(args.hide_keys)?);
    let result = if args.once { print(&args, &live, app).await } else { show(&args, &live, app).await };
    live.close().await;
    result
}

async fn print(args: &TopArgs, live: &Live, mut app: App) -> Result<ExitCode> {
    let progress = Progress::of("reading the database twice");
    let first = Data::read(live, &app.filters).await;
    if first.seen.error.is_none() {
        // The tokens taken are known from the second time on.
        tokio::time::sleep(args.interval).await;
    }
    app.data = Data::read(live, &app.filters).await;
    drop(progress);
    let errors: Vec<&String> = app.data.seen.error.iter().chain(&app.data.queue_error).collect();
    if let [first, _] = errors.as_slice() {
        return Err(CliError::failed(first));
    }
    errors.iter().for_each(output::note);
    app.data.seen.snapshot.note.iter().for_each(output::note);
    let printed = if args.json { output::line(screen::json(&app)) } else { output::lines(screen::text(&app)) };
    printed.map(|()| ExitCode::SUCCESS)
}

async fn show(args: &TopArgs, live: &Live, mut app: App) -> Result<ExitCode> {
    let failed = |error| CliError::failed(format!("cannot use the terminal: {error}"));
    // Before the screen is switched, so that no signal leaves it switched.
    let mut signals = Signals::listen().map_err(CliError::failed)?;
    let mut terminal = Terminal::open()?;
    // Reads after this pause. Returns also the pause until the next time.
    let read_after = |wait: Duration, filters: Filters| {
        Box::pin(async move {
            tokio::time::sleep(wait).await;
            let begin = Instant::now();
            let data = Data::read(live, &filters).await;
            let pause = pause(args.interval, begin, data.seen.error.is_some());
            (data, pause)
        })
    };
    let mut reading = read_after(Duration::ZERO, app.filters.clone());
    loop {
        terminal.screen.draw(|frame| screen::draw(frame, &app)).map_err(failed)?;
        tokio::select! {
            signal = signals.next() => return Ok(ExitCode::from(exit_code(signal))),
            (data, pause) = &mut reading => {
                app.data = data;
                reading = read_after(pause, app.filters.clone());
            }
            event = terminal.events.recv() => match event {
                Some(Ok(Event::Key(key))) if key.kind != KeyEventKind::Release => match app.press(key) {
                    Next::Quit => return Ok(ExitCode::SUCCESS),
                    Next::Read => reading = read_after(Duration::ZERO, app.filters.clone()),
                    Next::Draw => {}
                },
                // A new size of the terminal, too: the next loop draws in it.
                Some(Ok(_)) => {}
                Some(Err(error)) => return Err(failed(error)),
                None => return Err(CliError::failed("the terminal is closed")),
            },
        }
    }
}

pub(crate) const TOP_EXIT_CODES: &str = "\
Exit codes:
  0  ended with q or Ctrl-C, or printed
  2  an invalid argument or file
  3  the database is unavailable or lacks the schema, this is no terminal, or something else failed
  128 and the number of the signal that ended it

Keys: ? lists them. `top` writes nothing, and reads a large table only through indexes and samples. The role needs USAGE on the
schema, SELECT on its tables rate_limits, jobs, groups and queues, and for balances EXECUTE on its functions _limits_file and
_decide.";

#[derive(Args, Debug)]
pub(crate) struct TopArgs {
    /// Show only limits with this text in their names
    #[arg(long, value_name = "TEXT", default_value = "", hide_default_value = true)]
    limit: String,
    /// Show only keys that begin with this text
    #[arg(long, value_name = "PREFIX", default_value = "", hide_default_value = true)]
    key: String,
    /// Show only queues with this text in their names
    #[arg(long, value_name = "TEXT", default_value = "", hide_default_value = true)]
    queue: String,
    /// Show capacities and balances of the limits that this file defines: TOML, or JSON if its name ends in .json; `-` is
    /// standard input [default: the limits that are stored in the database]
    #[arg(long, value_name = "FILE")]
    limits: Option<PathBuf>,
    /// Time between two reads of the database, from 200ms to 1h; longer if a read takes long
    #[arg(long, value_name = "LENGTH", default_value = "2s", value_parser = interval)]
    interval: Duration,
    /// Show short hashes instead of keys, made with a secret of this run
    #[arg(long)]
    hide_keys: bool,
    /// Read the database twice, print what a terminal would show, and exit
    #[arg(long)]
    once: bool,
    /// Print JSON, one object; with --once
    #[arg(long, requires = "once")]
    json: bool,
}

fn interval(text: &str) -> Result<Duration, String> {
    let length = parse_length(text)?;
    let range = Duration::from_millis(200)..=Duration::from_secs(3600);
    if range.contains(&length) { Ok(length) } else { Err("must be from 200ms to 1h".to_owned()) }
}

/// How long the reading of events outlasts the screen.
const POLL: Duration = Duration::from_millis(100);

/// The screen is restored however this process ends, unless it is killed.
struct Terminal {
    screen: ratatui::DefaultTerminal,
    events: mpsc::UnboundedReceiver<io::Result<Event>>,
}

impl Terminal {
    /// Switches to a screen of its own. It also restores the terminal before a panic prints its message.
    fn open() -> Result<Self> {
        let why = match std::env::var("TERM").unwrap_or_default().as_str() {
            _ if !io::stdout().is_terminal() => "standard output is no terminal",
            "" => "the terminal has no name in TERM",
            "dumb" => "the terminal cannot move its cursor (TERM=dumb)",
            _ => "",
        };
        if !why.is_empty() {
            return Err(CliError::failed(format!("{why}: use `top --once` to print")));
        }
        let screen = ratatui::try_init().map_err(|error| {
            ratatui::restore();
            CliError::failed(format!("cannot use the terminal: {error}; use `top --once` to print"))
        })?;
        let (sender, events) = mpsc::unbounded_channel();
        std::thread::spawn(move || {
            while !sender.is_closed() {
                let next = event::poll(POLL).and_then(|is_there| is_there.then(event::read).transpose());
                if let Some(next) = next.transpose() {
                    let _ = sender.send(next); // It fails if the screen is closed.
                }
            }
        });
        Ok(Self { screen, events })
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        self.events.close();
        ratatui::restore();
    }
}
