//! The terminal: the screen is restored however this process ends, unless it is killed.

use std::io::{self, IsTerminal};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use ratatui::DefaultTerminal;
use ratatui::crossterm::event::{self, Event};
use tokio::sync::mpsc;

use crate::error::CliError;

/// How long the reading of events outlasts the screen.
const POLL: Duration = Duration::from_millis(100);

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
