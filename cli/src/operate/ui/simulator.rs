//! Runs the simulations of "What if": in temporary tables, in a transaction that is rolled back.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::Mutex;
use tokio::time::Instant;

use crate::database::Running;
use crate::error::Result;
use crate::study::plot::Panel;
use crate::study::replay::{LogOptions, Sandbox, panels_of_log};
use crate::study::simulate::{SimulateArgs, panels_of_traffic};
use pg_limiter::Limit;

/// The most calls of a simulation, so that it is drawn at once.
const MOST_CALLS: usize = 20_000;
/// A sandbox is closed after this time, because an open transaction keeps the server from removing dead rows.
const OPEN: Duration = Duration::from_secs(20);

/// Runs one simulation at a time.
pub(super) struct Simulator {
    running: Arc<Running>,
    /// With the time when it was opened.
    sandbox: Mutex<Option<(Sandbox, Instant)>>,
}

pub(super) struct Outcome {
    /// In words.
    pub(super) traffic: String,
    /// On lines of a log that cannot be read.
    pub(super) notes: Vec<String>,
    pub(super) panels: Vec<Panel>,
}

impl Simulator {
    pub(super) fn new(running: Arc<Running>) -> Self {
        Self { running, sandbox: Mutex::new(None) }
    }

    /// Offers the calls of the log, or else those of the arguments, to the limit of the arguments and to `today`, another limit.
    pub(super) async fn run(
        &self,
        args: &SimulateArgs,
        log: Option<(Vec<u8>, LogOptions)>,
        today: Option<(Arc<str>, Limit)>,
    ) -> Result<Outcome> {
        let mut kept = self.sandbox.lock().await;
        // The server may have ended the session since.
        let usable = match kept.take() {
            Some((mut sandbox, opened)) => sandbox.rewind().await.is_ok().then_some((sandbox, opened)),
            None => None,
        };
        let (mut sandbox, opened) = match usable {
            Some(usable) => usable,
            None => (Sandbox::open(&self.running).await?, Instant::now()),
        };
        let outcome = match log {
            None => {
                let (traffic, panels) = panels_of_traffic(args, today, MOST_CALLS, &mut sandbox).await?;
                Outcome { traffic, notes: Vec::new(), panels }
            }
            Some((log, options)) => {
                let limits: Vec<_> = args.limits(None)?.into_iter().chain(today).collect();
                let (panels, notes) = panels_of_log(&log, &options, &limits, MOST_CALLS, &mut sandbox).await?;
                Outcome { traffic: "the access log".to_owned(), notes, panels }
            }
        };
        *kept = Some((sandbox, opened));
        Ok(outcome)
    }

    pub(super) async fn tidy(&self) {
        loop {
            tokio::time::sleep(OPEN / 10).await;
            let over = self.sandbox.lock().await.take_if(|(_, opened)| opened.elapsed() > OPEN);
            if let Some((sandbox, _)) = over {
                let _ = sandbox.close().await;
            }
        }
    }

    pub(super) async fn close(&self) {
        if let Some((sandbox, _)) = self.sandbox.lock().await.take() {
            let _ = sandbox.close().await;
        }
    }
}
