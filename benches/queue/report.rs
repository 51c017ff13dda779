//! Medians over the rounds.

use crate::options::Options;
use crate::site::{CALLERS, CONCURRENCY, Site};

/// What the queue is to reach of the bare one.
const AT_LEAST: f64 = 0.5;

#[derive(Default)]
pub(crate) struct Report {
    /// The work, the bare queue's jobs in a second, and ours.
    pairs: Vec<(&'static str, f64, f64)>,
    /// In milliseconds.
    delays: Vec<f64>,
}

impl Report {
    pub(crate) fn pair(&mut self, work: &'static str, bare: f64, ours: f64) {
        self.pairs.push((work, bare, ours));
    }

    pub(crate) fn delays(&mut self, delays: Vec<f64>) {
        self.delays.extend(delays);
    }

    pub(crate) fn print(&mut self, site: &Site, options: &Options) {
        println!(
            "{}, {} rounds, {CALLERS} callers who enqueue, {CONCURRENCY} jobs at once",
            site.server.source(),
            options.rounds
        );
        println!("{:<26} {:>12} {:>12} {:>7}", "jobs a second", "bare", "pg-limiter", "ratio");
        let mut works: Vec<&str> = Vec::new();
        for (work, ..) in &self.pairs {
            if !works.contains(work) {
                works.push(work);
            }
        }
        for work in works {
            let of = |figure: fn(f64, f64) -> f64| {
                median(self.pairs.iter().filter(|(name, ..)| *name == work).map(|(_, bare, ours)| figure(*bare, *ours)))
            };
            let ratio = of(|bare, ours| ours / bare);
            let verdict = if ratio >= AT_LEAST { "met" } else { "missed" };
            println!(
                "{work:<26} {:>12.0} {:>12.0} {ratio:>7.2} at least {AT_LEAST}: {verdict}",
                of(|bare, _| bare),
                of(|_, ours| ours)
            );
        }
        self.delays.sort_by(f64::total_cmp);
        let percentile = |part: f64| self.delays[((self.delays.len() - 1) as f64 * part) as usize];
        println!(
            "from run_at to the handler, 20 groups of 10 a second: p50 {:.1} ms, p99 {:.1} ms",
            percentile(0.5),
            percentile(0.99)
        );
    }
}

fn median(figures: impl Iterator<Item = f64>) -> f64 {
    let mut figures: Vec<f64> = figures.collect();
    figures.sort_by(f64::total_cmp);
    figures.get(figures.len() / 2).copied().unwrap_or(f64::NAN)
}
