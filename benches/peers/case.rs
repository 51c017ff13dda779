//! A case is a measurement that each round makes once.

use std::fmt;
use std::time::Duration;

use sqlx::PgPool;

use crate::Failure;
use crate::cpu::{self, Processes};
use crate::load::{Load, Tally};
use crate::stage::Stage;
use crate::steal::CpuTimes;
use crate::team::{Order, Team};

/// A line of the table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Id {
    pub(crate) work: &'static str,
    pub(crate) peer: &'static str,
    /// The number of callers in each process.
    pub(crate) callers: usize,
    pub(crate) processes: usize,
}

impl Id {
    pub(crate) const fn of(work: &'static str, peer: &'static str, callers: usize) -> Self {
        Self { work, peer, callers, processes: 1 }
    }
}

impl fmt::Display for Id {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}, {} x {}", self.work, self.peer, self.processes, self.callers)
    }
}

#[derive(Debug)]
pub(crate) struct Case {
    pub(crate) id: Id,
    pub(crate) job: Job,
}

#[derive(Debug)]
pub(crate) enum Job {
    /// The callers run in this process.
    Calls {
        load: Load,
        /// SQL to run before the measurement.
        before: Option<(PgPool, String)>,
    },
    /// The callers run in separate processes.
    Processes(Order),
}

/// A tally, the server's CPU time for it, and the percentage of the machine's CPU time that was stolen meanwhile.
#[derive(Debug)]
pub(crate) struct Measured {
    pub(crate) tally: Tally,
    pub(crate) cpu: Option<Duration>,
    /// The CPU time of all processes of the machine.
    pub(crate) cpu_of_all: Option<Duration>,
    pub(crate) stolen: Option<f64>,
}

impl Case {
    pub(crate) fn calls(work: &'static str, load: Load) -> Self {
        Self::calls_after(work, load, None)
    }

    pub(crate) fn calls_after(work: &'static str, load: Load, before: Option<(PgPool, String)>) -> Self {
        let (peer, callers) = (load.peer.name, load.callers);
        Self { id: Id::of(work, peer, callers), job: Job::Calls { load, before } }
    }

    pub(crate) async fn measure(&self, stage: &Stage) -> Result<Measured, Failure> {
        let time = stage.options.time;
        match &self.job {
            Job::Calls { load, before } => {
                if let Some((pool, sql)) = before {
                    sqlx::raw_sql(sqlx::AssertSqlSafe(sql.as_str())).execute(pool).await?;
                }
                load.warm_up(time).await?;
                with_cpu_time(load.peer.processes, load.run(time)).await
            }
            Job::Processes(order) => {
                let team = Team::assemble(order, self.id.processes).await?;
                with_cpu_time(stage.postgres.processes(), team.run()).await
            }
        }
    }
}

/// The CPU time that all processes have used since `before`.
fn all_used_since(before: Option<CpuTimes>) -> Option<Duration> {
    let (before, now) = (before?, CpuTimes::now()?);
    cpu::TICK.checked_mul(u32::try_from(now.used().checked_sub(before.used())?).ok()?)
}

pub(crate) async fn with_cpu_time(
    processes: Processes,
    work: impl Future<Output = Result<Tally, Failure>>,
) -> Result<Measured, Failure> {
    let (before, times) = (processes.cpu_time(), CpuTimes::now());
    let tally = work.await?;
    let (stolen, cpu_of_all) = (CpuTimes::stolen_since(times), all_used_since(times));
    let cpu = processes.cpu_time().zip(before).map(|(after, before)| after.saturating_sub(before));
    Ok(Measured { tally, cpu, cpu_of_all, stolen })
}
