//! pg-limiter beside its peers, in one run on one PostgreSQL of its own: `cargo bench --bench peers`.
//!
//! Every peer is measured in every round, in turn, so that a machine that grows slower or faster does so for all of
//! them. The table shows medians over the rounds. `-- --rounds N --seconds S` change how long that takes.

mod load;
mod peer;
mod report;
mod server;

use std::time::Duration;

use pg_limiter::embedded::{Server, ServerConfig};

use crate::load::{Run, measure};
use crate::peer::Peer;

/// Callers at once, all on one key.
const CALLERS: [usize; 3] = [1, 8, 32];

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let number = |name: &str, default: f64| -> f64 {
        let mut arguments = std::env::args().skip_while(|argument| argument != name);
        arguments.nth(1).and_then(|value| value.parse().ok()).unwrap_or(default)
    };
    let rounds = number("--rounds", 3.0) as usize;
    let time = Duration::from_secs_f64(number("--seconds", 1.5));

    // Durable, as in production: what a decision waits for is the flush of the commit.
    let server = Server::start(&ServerConfig::default())?;
    println!("{}, one hot key, {rounds} rounds of {time:?}", server.source());
    let peers = Peer::all(&server::prepare(&server).await?).await?;

    let mut runs: Vec<Run> = Vec::new();
    for _ in 0..rounds {
        for callers in CALLERS {
            for peer in &peers {
                runs.push(measure(peer, callers, time).await?);
            }
        }
    }
    report::print(&runs, &peers, &CALLERS);
    Ok(())
}
