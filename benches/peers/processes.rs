//! Callers in several processes at once, all on one key. A process is this program again, with an order in its
//! environment: it gets ready and says so, begins when it is told to, and tells its tally as JSON.

use std::process::Stdio;
use std::time::Duration;

use pg_limiter::Isolation;
use serde::{Deserialize, Serialize};
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader, Lines};
use tokio::process::{Child, ChildStdin, ChildStdout, Command};

use crate::Failure;
use crate::case::{Case, Id, Job};
use crate::cpu::Processes;
use crate::keys::Picks;
use crate::limiters::{self, AMPLE};
use crate::load::{Load, Tally};
use crate::names::{OWN, PROCESSES, READ_COMMITTED};
use crate::peer::{Means, Peer};
use crate::stage::Stage;

const ORDER: &str = "PG_LIMITER_PEERS_ORDER";

/// Processes, and callers in each.
pub(crate) const ONE: (usize, usize) = (1, 256);
pub(crate) const FOUR: (usize, usize) = (4, 64);

pub(crate) fn cases(stage: &Stage) -> Vec<Case> {
    if !stage.options.wants(PROCESSES) {
        return Vec::new();
    }
    let case = |(peer, read_committed, (processes, callers))| {
        let (url, time) = (stage.postgres.url(), stage.options.time);
        let id = Id { work: PROCESSES, peer, callers, processes };
        Case { id, job: Job::Processes(Order { url, read_committed, callers, time }) }
    };
    let cases = [(OWN, false, ONE), (OWN, false, FOUR), (READ_COMMITTED, true, ONE), (READ_COMMITTED, true, FOUR)];
    cases.into_iter().map(case).collect()
}

/// To one process.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Order {
    url: String,
    read_committed: bool,
    callers: usize,
    time: Duration,
}

impl Order {
    pub(crate) fn of_this_process() -> Result<Option<Self>, Failure> {
        Ok(std::env::var(ORDER).ok().map(|order| serde_json::from_str(&order)).transpose()?)
    }

    /// What the other process does.
    pub(crate) async fn obey(self) -> Result<(), Failure> {
        let isolation = if self.read_committed { Isolation::ReadCommitted } else { Isolation::Serializable };
        let limiter = limiters::connect(&self.url, isolation, None).await?;
        let peer = Peer::new(OWN, Processes(None), Means::Limiter(limiter, AMPLE.into()));
        let load = Load { peer, callers: self.callers, picks: Picks::one("hot"), allowed: true };
        load.warm_up(self.time).await?;
        println!("ready");
        let mut line = String::new();
        if std::io::stdin().read_line(&mut line)? > 0 {
            println!("{}", serde_json::to_string(&load.run(self.time).await?)?);
        }
        Ok(())
    }
}

/// Processes that are ready.
pub(crate) struct Team {
    members: Vec<Member>,
}

struct Member {
    /// Ended when dropped.
    _process: Child,
    input: ChildStdin,
    output: Lines<BufReader<ChildStdout>>,
}

impl Team {
    pub(crate) async fn assemble(order: &Order, processes: usize) -> Result<Self, Failure> {
        let order = serde_json::to_string(order)?;
        let members: Vec<Member> = (0..processes).map(|_| Member::start(&order)).collect::<Result<_, _>>()?;
        let mut team = Self { members };
        for member in &mut team.members {
            member.line().await?; // ready
        }
        Ok(team)
    }

    /// All at once.
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
        }
        Ok(all)
    }
}

impl Member {
    fn start(order: &str) -> Result<Self, Failure> {
        let mut command = Command::new(std::env::current_exe()?);
        command.env(ORDER, order).stdin(Stdio::piped()).stdout(Stdio::piped()).kill_on_drop(true);
        let mut process = command.spawn()?;
        let (input, output) = process.stdin.take().zip(process.stdout.take()).ok_or("a process without its pipes")?;
        Ok(Self { _process: process, input, output: BufReader::new(output).lines() })
    }

    async fn line(&mut self) -> Result<String, Failure> {
        Ok(self.output.next_line().await?.ok_or("a process ended too soon")?)
    }
}
