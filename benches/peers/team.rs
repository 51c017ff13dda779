//! Callers in several concurrent processes, all on one key of a limit, with shards or without. Each process runs this program
//! with an order in its environment. It prints `ready`, waits for a line on its standard input, runs, and prints its tally as
//! JSON.

use std::process::Stdio;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use pg_limiter::Isolation;
use serde::{Deserialize, Serialize};
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader, Lines};
use tokio::process::{Child, ChildStdin, ChildStdout, Command};

use crate::Failure;
use crate::cpu::Processes;
use crate::keys::{Picks, key};
use crate::limiters::{self, AMPLE};
use crate::load::{self, Load, Tally};
use crate::names::OWN;
use crate::peer::{Means, Peer};

const ORDER: &str = "PG_LIMITER_PEERS_ORDER";

/// How a process makes its calls.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(crate) enum Way {
    Own,
    ReadCommitted,
    Within,
    Work,
}

/// The order to one process.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Order {
    pub(crate) url: String,
    pub(crate) way: Way,
    /// The shards of the limit. If set, a bucket with as many shards is emptied after the load.
    pub(crate) shards: Option<u32>,
    pub(crate) callers: usize,
    pub(crate) time: Duration,
    /// The number of the team. Each team empties its own bucket.
    pub(crate) number: u64,
}

impl Order {
    pub(crate) fn of_this_process() -> Result<Option<Self>, Failure> {
        Ok(std::env::var(ORDER).ok().map(|order| serde_json::from_str(&order)).transpose()?)
    }

    async fn peer(&self, limit: &str) -> Result<Arc<Peer>, Failure> {
        let isolation = match self.way {
            Way::ReadCommitted => Isolation::ReadCommitted,
            Way::Own | Way::Within | Way::Work => Isolation::Serializable,
        };
        let limiter = limiters::connect(&self.url, isolation, None).await?;
        let means = match self.way {
            Way::Own | Way::ReadCommitted => Means::Limiter(limiter, limit.into()),
            Way::Within => Means::Within(limiter, limit.into()),
            Way::Work => Means::Work(limiter, limit.into()),
        };
        Ok(Peer::new(OWN, Processes(None), means))
    }

    /// Carries out the order, in the started process.
    pub(crate) async fn obey(self) -> Result<(), Failure> {
        let peer = self.peer(&self.shards.map_or_else(|| AMPLE.to_owned(), limiters::sharded)).await?;
        let load = Load { peer, callers: self.callers, picks: Picks::one("hot"), allowed: true };
        load.warm_up(self.time).await?;
        println!("ready");
        let mut line = String::new();
        if std::io::stdin().read_line(&mut line)? > 0 {
            let mut tally = load.run(self.time).await?;
            if let Some(shards) = self.shards {
                let peer = self.peer(&limiters::sharded_few(shards)).await?;
                tally.emptied = Some(load::empty(&peer, self.callers, &key(self.number)).await?);
            }
            println!("{}", serde_json::to_string(&tally)?);
        }
        Ok(())
    }
}

/// Processes that are ready to run together.
pub(crate) struct Team {
    members: Vec<Member>,
}

struct Member {
    /// The process is killed when this is dropped.
    _process: Child,
    input: ChildStdin,
    output: Lines<BufReader<ChildStdout>>,
}

impl Team {
    pub(crate) async fn assemble(order: &Order, processes: usize) -> Result<Self, Failure> {
        static NUMBER: AtomicU64 = AtomicU64::new(0);
        let order = Order { number: NUMBER.fetch_add(1, Ordering::Relaxed), ..order.clone() };
        let order = serde_json::to_string(&order)?;
        let members: Vec<Member> = (0..processes).map(|_| Member::start(&order)).collect::<Result<_, _>>()?;
        let mut team = Self { members };
        for member in &mut team.members {
            member.line().await?; // ready
        }
        Ok(team)
    }

    /// Runs all processes at the same time, and adds up their tallies.
    pub(crate) async fn run(mut self) -> Result<Tally, Failure> {
        for member in &mut self.members {
            member.input.write_all(b"go\n").await?;
        }
        let mut all = Tally::default();
        for member in &mut self.members {
            let tally: Tally = serde_json::from_str(&member.line().await?)?;
            all.latencies.add(&tally.latencies);
            all.retries += tally.retries;
            all.elapsed = all.elapsed.max(tally.elapsed);
            if let Some(emptied) = tally.emptied {
                let all = all.emptied.get_or_insert_default();
                all.admitted += emptied.admitted;
                all.false_denials += emptied.false_denials;
            }
        }
        Ok(all)
    }
}

impl Member {
    fn start(order: &str) -> Result<Self, Failure> {
        let mut command = Command::new(std::env::current_exe()?);
        command.env(ORDER, order).stdin(Stdio::piped()).stdout(Stdio::piped()).kill_on_drop(true);
        let mut process = command.spawn()?;
        let (input, output) = process.stdin.take().zip(process.stdout.take()).ok_or("the process has no pipes")?;
        Ok(Self { _process: process, input, output: BufReader::new(output).lines() })
    }

    async fn line(&mut self) -> Result<String, Failure> {
        Ok(self.output.next_line().await?.ok_or("a process ended early")?)
    }
}
