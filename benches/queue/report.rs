//! The report: medians over the rounds.

use serde_json::{Map, Value, json};

use crate::churn::Churn;
use crate::names::{
    CALLERS, CONCURRENCY, ENQUEUE, ENQUEUE_100, ENQUEUE_ONE_GROUP, ENQUEUE_TRANSACTION, WORK, WORK_ONE_GROUP, WORKS,
};
use crate::options::Options;
use crate::tables::QueueTables;

/// The ratios that the project promises, with their workloads and the least share of the bare queue's rate.
const TARGETS: [(&str, &str, f64); 6] = [
    ("enqueue_vs_insert", ENQUEUE, 0.5),
    ("enqueue_one_group_vs_insert", ENQUEUE_ONE_GROUP, 0.5),
    ("enqueue_100_vs_insert", ENQUEUE_100, 0.3),
    ("enqueue_transaction_vs_insert", ENQUEUE_TRANSACTION, 0.5),
    ("work_vs_bare", WORK, 0.5),
    ("work_one_group_vs_bare", WORK_ONE_GROUP, 0.5),
];

/// The results of one workload in one round.
struct Pair {
    work: &'static str,
    /// Jobs per second, as in the next field.
    bare: f64,
    ours: f64,
    steal_percent: Option<f64>,
}

#[derive(Default)]
pub(crate) struct Report {
    pairs: Vec<Pair>,
    /// The delays from the reserved time to the handler, in milliseconds.
    delays: Vec<f64>,
    /// The longest pause of the machine beside them, in milliseconds.
    longest_pause: f64,
    pub(crate) churn: Option<Churn>,
}

impl Report {
    pub(crate) fn pair(&mut self, work: &'static str, bare: f64, ours: f64, steal_percent: Option<f64>) {
        self.pairs.push(Pair { work, bare, ours, steal_percent });
    }

    pub(crate) fn delays(&mut self, (delays, longest_pause): (Vec<f64>, f64)) {
        self.longest_pause = self.longest_pause.max(longest_pause);
        self.delays.extend(delays);
        self.delays.sort_by(f64::total_cmp);
    }

    pub(crate) fn print(&self, tables: &QueueTables, options: &Options) {
        println!(
            "{}, {} rounds, {CALLERS} callers that enqueue, {CONCURRENCY} concurrent jobs",
            tables.server.source(),
            options.rounds
        );
        if !self.pairs.is_empty() {
            println!("{:<26} {:>12} {:>12} {:>7} {:>7}", "jobs a second", "bare", "pg-limiter", "ratio", "steal %");
        }
        for work in self.works() {
            let least = TARGETS.iter().find(|(_, of, _)| *of == work).map(|(.., least)| *least);
            let Some((ratio, least)) = self.ratio(work).zip(least) else { continue };
            let verdict = if ratio >= least { "met" } else { "missed" };
            println!(
                "{work:<26} {:>12} {:>12} {ratio:>7.2} {:>7} at least {least}: {verdict}",
                number(self.median(work, |pair| Some(pair.bare)), 0),
                number(self.median(work, |pair| Some(pair.ours)), 0),
                number(self.median(work, |pair| pair.steal_percent), 1),
            );
        }
        if let Some((p50, p99)) = self.delay(0.5).zip(self.delay(0.99)) {
            println!(
                "delay from run_at to the handler, 20 groups at 10 a second: p50 {p50:.1} ms, p99 {p99:.1} ms; \
                 longest pause of the machine {:.1} ms",
                self.longest_pause
            );
        }
        if let Some(churn) = &self.churn {
            churn.print();
        }
    }

    pub(crate) fn json(&self, tables: &QueueTables, options: &Options) -> Value {
        let run = |work| {
            json!({
                "work": work,
                "bare_per_second": self.median(work, |pair| Some(pair.bare)),
                "jobs_per_second": self.median(work, |pair| Some(pair.ours)),
                "ratio": self.ratio(work),
                "steal_percent": self.median(work, |pair| pair.steal_percent),
            })
        };
        let target = |(field, work, least): (&str, &str, f64)| {
            let value = self.ratio(work);
            let met = value.map(|value| value >= least);
            (field.to_owned(), json!({"value": value, "target": least, "at": "least", "met": met}))
        };
        json!({
            "machine": {
                "cores": std::thread::available_parallelism().ok().map(std::num::NonZero::get),
                "postgres": tables.server.version(),
            },
            "rounds": options.rounds,
            "seconds": options.time.as_secs_f64(),
            "quick": options.quick,
            "callers": CALLERS,
            "runs": self.works().into_iter().map(run).collect::<Vec<_>>(),
            "delays": {"p50_ms": self.delay(0.5), "p99_ms": self.delay(0.99), "longest_pause_ms": self.longest_pause},
            "churn": self.churn.as_ref().map(Churn::json),
            "targets": TARGETS.into_iter().map(target).collect::<Map<_, _>>(),
        })
    }

    /// The workloads that were measured, each once.
    fn works(&self) -> Vec<&'static str> {
        WORKS.into_iter().filter(|work| self.pairs.iter().any(|pair| pair.work == *work)).collect()
    }

    /// The median of the ratios of the rounds.
    fn ratio(&self, work: &str) -> Option<f64> {
        self.median(work, |pair| Some(pair.ours / pair.bare))
    }

    fn median(&self, work: &str, figure: impl Fn(&Pair) -> Option<f64>) -> Option<f64> {
        let mut figures: Vec<f64> = self.pairs.iter().filter(|pair| pair.work == work).filter_map(figure).collect();
        figures.sort_by(f64::total_cmp);
        figures.get(figures.len() / 2).copied()
    }

    fn delay(&self, part: f64) -> Option<f64> {
        let last = self.delays.len().checked_sub(1)?;
        self.delays.get((last as f64 * part) as usize).copied()
    }
}

fn number(number: Option<f64>, decimals: usize) -> String {
    number.map_or_else(|| "-".to_owned(), |number| format!("{number:.decimals$}"))
}
