//! Runs the simulations of "What if": in temporary tables, in a transaction that is rolled back.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::Mutex;

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
    pub(super) sandbox: Arc<Mutex<Option<Sandbox>>>,
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
        Self { running, sandbox: Arc::default() }
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
        let mut sandbox = if let Some(mut sandbox) = kept.take()
            && sandbox.rewind().await.is_ok()
        {
            sandbox
        } else {
            let opened = Arc::clone(&self.sandbox);
            tokio::spawn(async move {
                tokio::time::sleep(OPEN).await;
                close(&opened).await;
            });
            Sandbox::open(&self.running).await?
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
        *kept = Some(sandbox);
        Ok(outcome)
    }
}

/// Closes a sandbox, if there is one.
pub(super) async fn close(sandbox: &Mutex<Option<Sandbox>>) {
    if let Some(sandbox) = sandbox.lock().await.take() {
        let _ = sandbox.close().await;
    }
}
