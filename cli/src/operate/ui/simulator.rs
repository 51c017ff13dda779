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
/// An unused sandbox is closed after this time, because an open transaction keeps the server from removing dead rows.
const UNUSED: Duration = Duration::from_secs(10);
const OPEN: Duration = Duration::from_secs(60);

/// Runs one simulation at a time.
pub(super) struct Simulator {
    running: Arc<Running>,
    sandbox: Mutex<Option<Kept>>,
}

struct Kept {
    sandbox: Sandbox,
    opened: Instant,
    used: Instant,
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
            Some(mut one) => one.sandbox.rewind().await.is_ok().then_some(one),
            None => None,
        };
        let mut one = match usable {
            Some(one) => one,
            None => Kept { sandbox: Sandbox::open(&self.running).await?, opened: Instant::now(), used: Instant::now() },
        };
        let outcome = match log {
            None => {
                let (traffic, panels) = panels_of_traffic(args, today, MOST_CALLS, &mut one.sandbox).await?;
                Outcome { traffic, notes: Vec::new(), panels }
            }
            Some((log, options)) => {
                let limits: Vec<_> = args.limits(None)?.into_iter().chain(today).collect();
                let (panels, notes) = panels_of_log(&log, &options, &limits, MOST_CALLS, &mut one.sandbox).await?;
                Outcome { traffic: "the access log".to_owned(), notes, panels }
            }
        };
        one.used = Instant::now();
        *kept = Some(one);
        Ok(outcome)
    }

    pub(super) async fn tidy(&self) {
        loop {
            tokio::time::sleep(UNUSED / 2).await;
            let is_over = |one: &mut Kept| one.used.elapsed() > UNUSED || one.opened.elapsed() > OPEN;
            let over = self.sandbox.lock().await.take_if(is_over);
            if let Some(one) = over {
                let _ = one.sandbox.close().await;
            }
        }
    }

    pub(super) async fn close(&self) {
        if let Some(one) = self.sandbox.lock().await.take() {
            let _ = one.sandbox.close().await;
        }
    }
}
