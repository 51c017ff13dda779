use std::io::{self, IsTerminal};
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use clap::Args;
use ratatui::DefaultTerminal;
use ratatui::crossterm::event::{self, Event, KeyEventKind};
use tokio::sync::{mpsc, watch};

use crate::database::Database;
use crate::error::CliError;
use crate::input;
use crate::live::Live;
use crate::output::{self, Progress};
use crate::signals::Signals;
use crate::text::parse_length;
use crate::top::app::{App, Data, Filters, Next, keep_reading};
use crate::top::columns::Style;
use crate::top::screen;

pub(crate) async fn run(args: TopArgs, database: Database) -> Result<ExitCode, CliError> {
    let of_file = args.limits.as_deref().map(input::read_limits).transpose()?;
    let running = database.named()?;
    // Report a wrong URL before the screen is switched.
    let _ = running.connect().await?;
    let limits = match of_file {
        Some(limits) => limits,
        None => running.shown_limits().await?,
    };
    let live = Live::new(running.options.clone(), running.schema.clone(), limits);
    let app = App::new(args.filters(), Style::of_locale(args.hide_keys)?);
    let result = if args.once { print(&args, &live, app).await } else { show(&args, &live, app).await };
    live.close().await;
    result
}

async fn print(args: &TopArgs, live: &Live, mut app: App) -> Result<ExitCode, CliError> {
    let progress = Progress::of("reading the database twice");
    let first = Data::read(live, &app.filters).await;
    if first.seen.error.is_none() {
        // The tokens taken are known from the second time on.
        tokio::time::sleep(args.interval).await;
    }
    app.update(Data::read(live, &app.filters).await);
    drop(progress);
    let errors: Vec<&String> = app.data.seen.error.iter().chain(&app.data.queue_error).collect();
    if let [first, _] = errors.as_slice() {
        return Err(CliError::failed(first));
    }
    errors.iter().for_each(output::note);
    app.data.seen.snapshot.note.iter().for_each(output::note);
    if args.json {
        output::line(screen::json(&app)?)?
    } else {
        output::lines(screen::text(&app))?
    }
    Ok(ExitCode::SUCCESS)
}

async fn show(args: &TopArgs, live: &Live, mut app: App) -> Result<ExitCode, CliError> {
    let failed = |error| CliError::failed(format!("cannot use the terminal: {error}"));
    // Before the screen is switched, so that no signal leaves it switched.
    let mut signals = Signals::listen().map_err(CliError::failed)?;
    let mut terminal = Terminal::open()?;
    let (filters, wanted) = watch::channel(app.filters.clone());
    let (sender, mut data) = mpsc::channel(1);
    tokio::spawn(keep_reading(live.clone(), args.interval, wanted, sender));
    loop {
        terminal.screen.draw(|frame| screen::draw(frame, &app)).map_err(failed)?;
        tokio::select! {
            signal = signals.next() => return Ok(ExitCode::from(128 + signal.number())),
            read = data.recv() => match read {
                Some(read) => app.update(read),
                None => return Err(CliError::failed("reading the database has failed")),
            },
            event = terminal.events.recv() => match event {
                Some(Ok(Event::Key(key))) if key.kind != KeyEventKind::Release => match app.press(key) {
                    Next::Quit => return Ok(ExitCode::SUCCESS),
                    Next::Read => drop(filters.send(app.filters.clone())),
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
schema, SELECT on its tables rate_limits, jobs and groups, and for balances EXECUTE on its functions _limits_file and _decide.";

#[derive(Args, Debug)]
pub(crate) struct TopArgs {
    /// Show only limits with this text in their names
    #[arg(long, value_name = "TEXT")]
    limit: Option<String>,
    /// Show only keys that begin with this text
    #[arg(long, value_name = "PREFIX")]
    key: Option<String>,
    /// Show only queues with this text in their names
    #[arg(long, value_name = "TEXT")]
    queue: Option<String>,
    /// Show capacities and balances of the limits that this file defines: TOML, or JSON if its name ends in .json; `-` is
    /// standard input [default: the limits that are stored in the database]
    #[arg(long, value_name = "FILE")]
    pub(super) limits: Option<PathBuf>,
    /// Time between two reads of the database, from 200ms to 1h; longer if a read takes long
    #[arg(long, value_name = "LENGTH", default_value = "2s", value_parser = interval)]
    pub(super) interval: Duration,
    /// Show short hashes instead of keys, made with a secret of this run
    #[arg(long)]
    pub(super) hide_keys: bool,
    /// Read the database twice, print what a terminal would show, and exit
    #[arg(long)]
    pub(super) once: bool,
    /// Print JSON, one object; with --once
    #[arg(long, requires = "once")]
    pub(super) json: bool,
}

impl TopArgs {
    pub(super) fn filters(&self) -> Filters {
        let text = |text: &Option<String>| text.clone().unwrap_or_default();
        Filters([text(&self.limit), text(&self.key), text(&self.queue)])
    }
}

fn interval(text: &str) -> Result<Duration, String> {
    let length = parse_length(text)?;
    let range = Duration::from_millis(200)..=Duration::from_secs(3600);
    if range.contains(&length) { Ok(length) } else { Err("must be from 200ms to 1h".to_owned()) }
}

/// How long the reading of events outlasts the screen.
const POLL: Duration = Duration::from_millis(100);

/// The screen is restored however this process ends, unless it is killed.
pub(super) struct Terminal {
    pub(super) screen: DefaultTerminal,
    pub(super) events: mpsc::UnboundedReceiver<io::Result<Event>>,
    is_closed: Arc<AtomicBool>,
}

impl Terminal {
    /// Switches to a screen of its own. It also restores the terminal before a panic prints its message.
    pub(super) fn open() -> Result<Self, CliError> {
        let term = std::env::var("TERM").unwrap_or_default();
        let why = match term.as_str() {
            _ if !io::stdout().is_terminal() => Some("standard output is no terminal".to_owned()),
            "" => Some("the terminal has no name in TERM".to_owned()),
            "dumb" => Some("the terminal cannot move its cursor (TERM=dumb)".to_owned()),
            _ => None,
        };
        if let Some(why) = why {
            return Err(CliError::failed(format!("{why}: use `top --once` to print")));
        }
        let screen = ratatui::try_init().map_err(|error| {
            ratatui::restore();
            CliError::failed(format!("cannot use the terminal: {error}; use `top --once` to print"))
        })?;
        let is_closed = Arc::new(AtomicBool::new(false));
        let (sender, events) = mpsc::unbounded_channel();
        let closed = Arc::clone(&is_closed);
        std::thread::spawn(move || {
            while !closed.load(Ordering::Relaxed) {
                let next = match event::poll(POLL) {
                    Ok(false) => continue,
                    Ok(true) => event::read(),
                    Err(error) => Err(error),
                };
                let is_last = next.is_err();
                if sender.send(next).is_err() || is_last {
                    return;
                }
            }
        });
        Ok(Self { screen, events, is_closed })
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        self.is_closed.store(true, Ordering::Relaxed);
        ratatui::restore();
    }
}
