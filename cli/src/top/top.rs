use std::process::ExitCode;

use ratatui::crossterm::event::{Event, KeyEventKind};
use tokio::sync::{mpsc, watch};

use crate::database::Database;
use crate::error::CliError;
use crate::live::Live;
use crate::progress::Progress;
use crate::signals::Signals;
use crate::top::app::{App, Next};
use crate::top::args::TopArgs;
use crate::top::cells::Style;
use crate::top::data::{Data, keep_reading};
use crate::top::terminal::Terminal;
use crate::top::{once, screen};
use crate::{input, output};

pub(crate) async fn run(args: TopArgs, database: Database) -> Result<ExitCode, CliError> {
    let of_file = args.limits.as_deref().map(input::read_limits).transpose()?;
    let running = database.named()?;
    // Report a wrong URL before the screen is switched.
    let _ = running.connect().await?;
    let limits = match of_file {
        Some(limits) => limits,
        None => running.shown_limits().await?,
    };
    let live = Live::new(running.options().clone(), running.schema().clone(), limits);
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
        output::line(once::json(&app)?)?
    } else {
        output::lines(once::text(&app))?
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
