//! The ratios that the project promises, and whether this run met them.

use crate::case::Id;
use crate::names::*;
use crate::options::Options;
use crate::processes;
use crate::results::{Figures, Results};
use crate::{allowance, first_touch, gateway, groups, old_snapshot, sliding, transactions, windows};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum At {
    Least,
    Most,
}

impl At {
    pub(crate) const fn as_str(self) -> &'static str {
        match self {
            Self::Least => "least",
            Self::Most => "most",
        }
    }
}

#[derive(Debug)]
pub(crate) struct Target {
    pub(crate) field: &'static str,
    /// `None` if it was not measured.
    pub(crate) value: Option<f64>,
    /// `None` for a ratio that is only reported.
    pub(crate) target: Option<f64>,
    pub(crate) at: At,
}

impl Target {
    const fn new(field: &'static str, value: Option<f64>, at: At, target: f64) -> Self {
        Self { field, value, target: Some(target), at }
    }

    const fn reported(field: &'static str, value: Option<f64>) -> Self {
        Self { field, value, target: None, at: At::Least }
    }

    pub(crate) fn met(&self) -> Option<bool> {
        let (value, target) = self.value.zip(self.target)?;
        Some(match self.at {
            At::Least => value >= target,
            At::Most => value <= target,
        })
    }
}

pub(crate) fn of(results: &Results, options: &Options) -> Vec<Target> {
    let speed = |above, below| results.ratio(&above, &below, |figures: &Figures| figures.per_second);
    let cpu = |above, below| results.ratio(&above, &below, |figures: &Figures| figures.cpu_us);
    let hot = |peer, callers| Id::of(HOT, peer, callers);
    let uniform = |peer| Id::of(UNIFORM, peer, 256);
    let several = |peer| {
        let id = |(processes, callers)| Id { work: PROCESSES, peer, callers, processes };
        speed(id(processes::FOUR), id(processes::ONE))
    };
    let (serializable, read_committed) = (several(OWN), several(READ_COMMITTED));
    let better = serializable.into_iter().chain(read_committed).reduce(f64::max);
    let sharded = |work: [(u32, &'static str); 3], nth: usize, (processes, callers)| Id {
        work: SHARDS,
        peer: work[nth].1,
        callers,
        processes,
    };
    let own = |nth| sharded(SHARDED, nth, processes::EIGHT);
    let within = |nth| sharded(SHARDED_WITHIN, nth, processes::EIGHT_AT_WORK);
    let at_work = |nth| sharded(SHARDED_WORK, nth, processes::EIGHT_AT_WORK);
    let retries = |above, below| results.ratio(&above, &below, |figures: &Figures| figures.retries);
    let slid = |peer| Id::of(SLIDING, peer, sliding::CALLERS[1]);
    let touched = |peer| Id::of(FIRST_TOUCH, peer, first_touch::CALLERS);
    let kept = |[before, under]: [Id; 2]| speed(under, before);
    let (kept_within, kept_combined) = (kept(old_snapshot::WITHIN_IDS), kept(old_snapshot::COMBINED_IDS));
    let kept_least = kept_within.into_iter().chain(kept_combined).reduce(f64::min);
    // A quick run makes fewer decisions than the field's name states.
    let pages = results.table_pages.filter(|_| !options.quick).map(|pages| pages as f64);
    let remembered = results.median(&Id::of(DENIED, REMEMBERED, 1), |figures| figures.per_second);
    let mut targets = vec![
        Target::new("hot_256_vs_redis", speed(hot(OWN, 256), hot(REDIS, 256)), At::Least, 1.5),
        Target::new("hot_256_vs_redis_durable", speed(hot(OWN, 256), hot(REDIS_DURABLE, 256)), At::Least, 3.0),
        Target::new("hot_32_vs_seed", speed(hot(OWN, 32), hot(SEED, 32)), At::Least, 40.0),
        Target::new("uniform_256_vs_redis_durable", speed(uniform(OWN), uniform(REDIS_DURABLE)), At::Least, 1.0),
        Target::new("processes_4_vs_1", better, At::Least, 0.5),
        Target::reported("processes_4_vs_1_serializable", serializable),
        Target::reported("processes_4_vs_1_read_committed", read_committed),
        Target::new("shards_16_vs_1_retries", retries(own(2), own(0)), At::Most, 0.2),
        Target::reported("shards_16_vs_1_retries_work", retries(at_work(2), at_work(0))),
        Target::reported("shards_16_vs_1", speed(own(2), own(0))),
        Target::reported("shards_16_vs_1_within", speed(within(2), within(0))),
        Target::reported("shards_16_vs_1_work", speed(at_work(2), at_work(0))),
        Target::new("shards_over_admissions", results.total(SHARDS, |f| f.over_admissions), At::Most, 0.0),
        Target::new("shards_false_denials", results.total(SHARDS, |f| f.false_denials), At::Most, 0.0),
        Target::new("sliding_log_cpu_vs_counter", cpu(slid(LOG), slid(COUNTER)), At::Least, 40.0),
        Target::new("first_touch_vs_warm", speed(touched(NEW_KEYS), touched(WARM_KEYS)), At::Least, 0.6),
        Target::new("table_pages_after_1e6", pages, At::Most, 64.0),
        Target::new("old_snapshot", kept_least.filter(|_| !options.quick), At::Least, 0.5),
        Target::reported("old_snapshot_within", kept_within),
        Target::reported("old_snapshot_combined", kept_combined),
        Target::new("remembered_denials_per_second", remembered, At::Least, 1e6),
    ];
    targets.extend(of_several_limits_and_windows(results));
    targets.extend(of_gateways(results));
    targets.extend(of_allowances(results));
    targets.extend(beside_updates(results));
    targets
}

fn of_several_limits_and_windows(results: &Results) -> [Target; 5] {
    let speed = |above, below| results.ratio(&above, &below, |figures| figures.per_second);
    let group = |peer| Id::of(GROUPS, peer, groups::CALLERS);
    let window = |work| {
        let peer = |peer| Id::of(work, peer, windows::CALLERS);
        speed(peer(OWN), peer(REDIS))
    };
    [
        Target::new("groups_256_vs_redis", speed(group(OWN), group(REDIS)), At::Least, 0.6),
        Target::new("groups_256_vs_redis_read_committed", speed(group(READ_COMMITTED), group(REDIS)), At::Least, 0.6),
        Target::reported("sliding_256_vs_redis", window(SLIDING_256)),
        Target::reported("fixed_256_vs_redis", window(FIXED_256)),
        Target::new("concurrency_256_vs_redis", window(CONCURRENCY_256), At::Least, 0.6),
    ]
}

fn of_gateways(results: &Results) -> [Target; 5] {
    let speed = |above, below| results.ratio(&above, &below, |figures| figures.per_second);
    let p50 = |above, below| results.ratio(&above, &below, |figures| figures.p50_ms);
    let few = |peer, callers| Id::of(GATEWAY, peer, callers);
    let one = |peer| Id::of(GATEWAY_ONE_KEY, peer, gateway::CALLERS[0]);
    let [twenty, many] = gateway::CALLERS;
    [
        Target::reported("gateway_20_vs_tensorzero", speed(few(OWN, twenty), few(TENSORZERO, twenty))),
        Target::reported("gateway_200_vs_tensorzero", speed(few(OWN, many), few(TENSORZERO, many))),
        Target::reported("gateway_20_vs_redis", speed(few(OWN, twenty), few(REDIS, twenty))),
        Target::reported("gateway_200_vs_redis", speed(few(OWN, many), few(REDIS, many))),
        Target::reported("gateway_one_key_20_p50_vs_tensorzero", p50(one(OWN), one(TENSORZERO))),
    ]
}

fn of_allowances(results: &Results) -> [Target; 3] {
    let speed = |below| {
        let peer = |peer| Id::of(ALLOWANCE_256, peer, allowance::CALLERS);
        results.ratio(&peer(ALLOWANCE), &peer(below), |figures| figures.per_second)
    };
    [
        Target::reported("allowance_256_vs_governor", speed(GOVERNOR)),
        Target::reported("allowance_256_vs_redis", speed(REDIS)),
        Target::reported("allowance_256_vs_own", speed(OWN)),
    ]
}

/// A call on its own, or in the caller's transaction, beside bare UPDATEs. As times or speeds, and as the CPU time of all
/// processes, which is steadier.
fn beside_updates(results: &Results) -> [Target; 17] {
    let speed = |[own, update]: [Id; 2]| results.ratio(&own, &update, |figures| figures.per_second);
    let p50 = |[own, update]: [Id; 2]| results.ratio(&own, &update, |figures| figures.p50_ms);
    let cpu = |[above, below]: [Id; 2]| results.ratio(&above, &below, |figures| figures.cpu_of_all_us);
    let lone = |work, own, update| [Id::of(work, own, 1), Id::of(work, update, 1)];
    let within = |work, updates| [WITHIN, updates].map(|peer| Id::of(work, peer, transactions::CALLERS));
    // In a transaction, the ratio is that of what the UPDATEs use to what the limits use.
    let cpu_within = |[own, updates]: [Id; 2]| cpu([updates, own]);
    let (alone, alone_sliding) = (lone(LONE, OWN, UPDATE), lone(LONE_SLIDING, OWN, UPDATE));
    let four = lone(FOUR, FOUR_LIMITS, ONE_LIMIT);
    let row = lone(ROWS, ROWS_LIMIT, ROWS_UPDATE);
    let one = within(TRANSACTION_LIMIT, UPDATE);
    let two = within(TRANSACTION_TWO, TWO_UPDATES);
    let sliding = within(TRANSACTION_SLIDING, UPDATE);
    let sums = |nth: usize| speed(lone(SUMS, SUMS_OF[nth], SUMS_UPDATES[nth]));
    [
        Target::new("lone_p50_vs_update", p50(alone), At::Most, 1.35),
        Target::new("lone_p50_vs_update_cpu", cpu(alone), At::Most, 1.35),
        Target::new("lone_sliding_p50_vs_update", p50(alone_sliding), At::Most, 1.45),
        Target::new("lone_sliding_p50_vs_update_cpu", cpu(alone_sliding), At::Most, 1.45),
        Target::new("transaction_limit_vs_update", speed(one), At::Least, 0.8),
        Target::new("transaction_limit_vs_update_cpu", cpu_within(one), At::Least, 0.75),
        Target::new("transaction_two_vs_two_updates", speed(two), At::Least, 0.8),
        Target::new("transaction_two_vs_two_updates_cpu", cpu_within(two), At::Least, 0.8),
        Target::new("transaction_sliding_vs_update", speed(sliding), At::Least, 0.75),
        Target::new("transaction_sliding_vs_update_cpu", cpu_within(sliding), At::Least, 0.75),
        Target::new("four_limits_p50_vs_one", p50(four), At::Most, 1.3),
        Target::new("four_limits_p50_vs_one_cpu", cpu(four), At::Most, 1.3),
        Target::new("sums_vs_update", sums(0), At::Least, 0.7),
        Target::new("sums_fixed_vs_update", sums(1), At::Least, 0.7),
        Target::new("sums_sliding_vs_update", sums(2), At::Least, 0.6),
        Target::new("rows_1e7_vs_update", p50(row), At::Most, 1.4),
        Target::reported("rows_1e7_vs_update_per_second", speed(row)),
    ]
}
