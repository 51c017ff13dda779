//! The measurements, and their medians.

use std::time::Duration;

use crate::Failure;
use crate::case::{Id, Measured};
use crate::limiters::FEW;

/// The measurement for one line of the table in one round.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Run {
    round: usize,
    id: Id,
    pub(crate) figures: Figures,
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Figures {
    pub(crate) per_second: Option<f64>,
    pub(crate) p50_ms: Option<f64>,
    pub(crate) p99_ms: Option<f64>,
    /// Retries per decision.
    pub(crate) retries: Option<f64>,
    /// The server's CPU time per decision.
    pub(crate) cpu_us: Option<f64>,
    /// The CPU time of all processes of the machine per decision: what a shared machine pays for it.
    pub(crate) cpu_of_all_us: Option<f64>,
    /// The percentage of the machine's CPU time that other machines on its host took.
    pub(crate) steal_percent: Option<f64>,
    /// For a bucket that was emptied: how many tokens were admitted in excess, and how many denials were wrong.
    pub(crate) over_admissions: Option<f64>,
    pub(crate) false_denials: Option<f64>,
}

impl From<Measured> for Figures {
    fn from(Measured { tally, cpu, cpu_of_all, stolen }: Measured) -> Self {
        let count = tally.latencies.count() as f64;
        let some = |figure: f64| figure.is_finite().then_some(figure);
        // The decisions that empty a bucket use CPU time, but are not counted, so the figure would be wrong with them.
        let per_decision = |cpu: Option<Duration>| {
            cpu.filter(|_| tally.emptied.is_none()).and_then(|cpu| some(cpu.as_secs_f64() * 1e6 / count))
        };
        Self {
            per_second: some(count / tally.elapsed.as_secs_f64()),
            p50_ms: tally.latencies.percentile_ms(0.5),
            p99_ms: tally.latencies.percentile_ms(0.99),
            retries: some(tally.retries as f64 / count),
            cpu_us: per_decision(cpu),
            cpu_of_all_us: per_decision(cpu_of_all),
            steal_percent: stolen,
            over_admissions: tally.emptied.map(|emptied| emptied.admitted.saturating_sub(FEW.into()) as f64),
            // If fewer tokens were admitted than the bucket held, the denials were wrong, too.
            false_denials: tally
                .emptied
                .map(|emptied| emptied.false_denials.max(u64::from(FEW).saturating_sub(emptied.admitted)) as f64),
        }
    }
}

#[derive(Debug, Default)]
pub(crate) struct Results {
    runs: Vec<Run>,
    pub(crate) table_pages: Option<i64>,
    pub(crate) failures: Vec<String>,
}

impl Results {
    pub(crate) fn add(&mut self, round: usize, id: &Id, measured: Result<Measured, Failure>) {
        match measured {
            Ok(measured) => self.runs.push(Run { round, id: *id, figures: measured.into() }),
            Err(failure) => {
                eprintln!("  failed: {failure}");
                self.failures.push(format!("{id}, round {round}: {failure}"));
            }
        }
    }

    /// The lines of the table, in the order of their first measurements.
    pub(crate) fn lines(&self) -> Vec<(Id, Figures)> {
        let mut ids: Vec<Id> = Vec::new();
        for run in &self.runs {
            if !ids.contains(&run.id) {
                ids.push(run.id);
            }
        }
        ids.into_iter().map(|id| (id, self.medians(&id))).collect()
    }

    fn medians(&self, id: &Id) -> Figures {
        Figures {
            per_second: self.median(id, |figures| figures.per_second),
            p50_ms: self.median(id, |figures| figures.p50_ms),
            p99_ms: self.median(id, |figures| figures.p99_ms),
            retries: self.median(id, |figures| figures.retries),
            cpu_us: self.median(id, |figures| figures.cpu_us),
            cpu_of_all_us: self.median(id, |figures| figures.cpu_of_all_us),
            steal_percent: self.median(id, |figures| figures.steal_percent),
            over_admissions: self.sum(id, |figures| figures.over_admissions),
            false_denials: self.sum(id, |figures| figures.false_denials),
        }
    }

    pub(crate) fn median(&self, id: &Id, figure: impl Fn(&Figures) -> Option<f64>) -> Option<f64> {
        median(self.runs.iter().filter(|run| run.id == *id).filter_map(|run| figure(&run.figures)).collect())
    }

    /// The sum over all rounds.
    fn sum(&self, id: &Id, figure: impl Fn(&Figures) -> Option<f64>) -> Option<f64> {
        self.runs.iter().filter(|run| run.id == *id).filter_map(|run| figure(&run.figures)).reduce(|a, b| a + b)
    }

    /// The sum over all rounds and peers of a workload.
    pub(crate) fn total(&self, work: &str, figure: impl Fn(&Figures) -> Option<f64>) -> Option<f64> {
        self.runs.iter().filter(|run| run.id.work == work).filter_map(|run| figure(&run.figures)).reduce(|a, b| a + b)
    }

    /// The median of the ratios of the rounds.
    pub(crate) fn ratio(&self, above: &Id, below: &Id, figure: impl Fn(&Figures) -> Option<f64>) -> Option<f64> {
        let of_round = |above: &Run| {
            let below = self.runs.iter().find(|run| run.id == *below && run.round == above.round)?;
            let ratio = figure(&above.figures)? / figure(&below.figures)?;
            ratio.is_finite().then_some(ratio)
        };
        median(self.runs.iter().filter(|run| run.id == *above).filter_map(of_round).collect())
    }
}

fn median(mut values: Vec<f64>) -> Option<f64> {
    values.sort_unstable_by(f64::total_cmp);
    let middle = values.len() / 2;
    let upper = values.get(middle)?;
    if values.len() % 2 == 1 { Some(*upper) } else { values.get(middle - 1).map(|lower| f64::midpoint(*lower, *upper)) }
}
