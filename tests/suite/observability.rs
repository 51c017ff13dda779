//! The limiter's spans and metrics are those that the tables of the interface document.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::Duration;

use futures_util::future::join_all;
use pg_limiter::observability::count_shadow_denial;
#[cfg(feature = "reqwest")]
use pg_limiter::outgoing::OutgoingLimits;
use pg_limiter::queue::{Finish, Job, JobState, Queue, handler_fn};
use pg_limiter::{Error, Item, LeaseId, Limit, Limits, LimitsFile};

#[cfg(feature = "reqwest")]
use crate::outgoing::{ThirdParty, client};
use crate::queue::{in_state, quick};
use crate::support::gate::{self, CENTURY};
use crate::support::{Database, Spans, watch};

const INTERFACE: &str = include_str!("../../src/observability/interface.md");
const KEY: &str = "anna.secret@example.com";
const PART: &str = "anna";

fn limits() -> Limits {
    Limits::new()
        .define("two", Limit::token_bucket(2, CENTURY).max_reserved(1))
        .and_then(|limits| limits.define("many", Limit::token_bucket(1_000_000, CENTURY)))
        .and_then(|limits| limits.define("sliding", Limit::sliding_window(1, CENTURY)))
        .and_then(|limits| limits.define("quick", Limit::token_bucket(1000, Duration::from_secs(1))))
        .and_then(|limits| limits.define("jobs", Limit::token_bucket(1000, CENTURY)))
        .and_then(|limits| limits.define("gate", Limit::gate()))
        .and_then(|limits| limits.define("slots", Limit::concurrency(1).lease(CENTURY)))
        .and_then(|limits| limits.define("full", Limit::token_bucket(1, CENTURY).max_reserved(0)))
        .expect("limits")
}

/// The rows, without the head, of the table under this heading whose head begins with `head`.
fn table(heading: &str, head: &str) -> Vec<Vec<String>> {
    let section = INTERFACE.split("\n# ").find(|section| section.starts_with(heading)).expect("a section");
    let lines = section.lines().skip_while(|line| !line.starts_with(head)).skip(2);
    let cells = |line: &str| line.split('|').map(|cell| cell.trim().to_owned()).collect::<Vec<_>>();
    lines.take_while(|line| line.starts_with('|')).map(|line| cells(line)[1..].to_vec()).collect()
}

/// The words between backticks.
fn words(cell: &str) -> BTreeSet<String> {
    cell.split('`').skip(1).step_by(2).map(ToOwned::to_owned).collect()
}

/// A third party demands a pause.
#[cfg(feature = "reqwest")]
async fn pause(limiter: &pg_limiter::Limiter) {
    let third_party = ThirdParty::start().await;
    third_party.next(429, &[("retry-after", b"3600")]);
    let outgoing = OutgoingLimits::new(limiter.clone()).gate(("gate", KEY)).expect("a gate");
    let request = client(outgoing).get(&third_party.served.url);
    assert_eq!(request.send().await.expect("sent").status(), 429);
}

/// Makes everything that is documented happen at least once.
async fn everything(database: &Database) {
    let limiter = gate::limiter(&database.app, limits(), |_| {});
    let two = || Item::new("two", KEY);
    assert!(limiter.limit(("two", KEY, 2)).await.expect("a decision").is_allowed());
    assert!(!limiter.limit(two().reserve()).await.expect("a decision").is_denied());
    let denied = limiter.limit([two(), Item::new("many", KEY)]).await.expect("a decision");
    count_shadow_denial(&denied);
    let _ = limiter.check(two()).await.expect("a decision");
    let _ = limiter.peek(two()).await.expect("balances");
    let _ = limiter.credit(two()).await.expect("balances");
    let _ = limiter.charge(two()).await.expect("balances");
    let _ = limiter.settle(two(), 1).await.expect("a balance");
    let _ = limiter.until_ready(("quick", KEY), Duration::from_secs(60)).await.expect("a decision");
    let _ = limiter.until_ready(two(), Duration::from_secs(1)).await.expect("a decision");
    let _ = limiter.limit(("nope", KEY)).await.expect_err("an unknown limit");
    let error = limiter
        .transaction(async |tx| {
            let _ = limiter.within(tx).limit(Item::new("many", KEY)).await?;
            limiter.within(tx).limit(two()).await?.enforce()
        })
        .await
        .expect_err("denied");
    assert!(error.denied().is_some());
    let first = AtomicU32::new(0);
    let again = limiter.transaction(async |tx| {
        let _ = limiter.within(tx).check(two()).await?;
        match first.fetch_add(1, Ordering::Relaxed) {
            0 => Err(Error::Conflict { source: pg_limiter::sqlx::Error::WorkerCrashed }),
            _ => Ok(()),
        }
    });
    again.await.expect("the second time");
    let mut tx = database.app.begin().await.expect("begin");
    let _ = limiter.within(&mut tx).peek(two()).await.expect("balances");
    let _ = limiter.within(&mut tx).credit(two()).await.expect("balances");
    let _ = limiter.within(&mut tx).charge(two()).await.expect("balances");
    let _ = limiter.within(&mut tx).settle(two(), 1).await.expect("a balance");
    limiter.within(&mut tx).reset(two()).await.expect("reset");
    let _ = limiter.within(&mut tx).block(("gate", KEY), CENTURY).await.expect("a block");
    let _ = limiter.within(&mut tx).is_blocked(("gate", KEY)).await.expect("an answer");
    limiter.within(&mut tx).unblock(("gate", KEY)).await.expect("unblocked");
    let _ = limiter.within(&mut tx).forget(KEY).await.expect("forgotten");
    let _ = limiter.within(&mut tx).reset_all_keys("two").await.expect("reset");
    tx.commit().await.expect("commit");
    limiter.reset(two()).await.expect("reset");
    let _ = limiter.block(("gate", KEY), CENTURY).await.expect("a block");
    let _ = limiter.is_blocked(("gate", KEY)).await.expect("an answer");
    limiter.unblock(("gate", KEY)).await.expect("unblocked");
    let _ = limiter.forget(KEY).await.expect("forgotten");
    let _ = limiter.reset_all_keys("two").await.expect("reset");
    join_all((0..5).map(|_| limiter.limit(("many", KEY)))).await.into_iter().for_each(|decision| {
        assert!(decision.expect("a decision").is_allowed());
    });

    let file = tempfile::NamedTempFile::new().expect("a file");
    let watched = limiter.watch_limits_file(LimitsFile::new(file.path())).expect("watched");
    watched.reload().await.expect("no limits");
    std::fs::write(file.path(), "wrong").expect("written");
    let _ = watched.reload().await.expect_err("wrong");
    drop(watched);
    let slot = || Item::new("slots", KEY);
    let lease = limiter.acquire([slot(), Item::new("many", KEY)]).await.expect("an answer").enforce().expect("a slot");
    assert!(!limiter.acquire(slot()).await.expect("an answer").is_allowed());
    let _ = limiter.acquire(two()).await.expect_err("no slots");
    assert!(lease.renew().await.expect("an answer"));
    assert!(lease.release().await.expect("an answer"));
    // Two leases are lost: one is renewed too late, the other one released.
    for renews in [true, false] {
        let lease = limiter.acquire(slot()).await.expect("an answer").enforce().expect("a slot");
        limiter.reset(slot()).await.expect("reset");
        assert!(!renews || !lease.renew().await.expect("an answer"));
        assert!(!lease.release().await.expect("an answer"));
    }
    let mut tx = database.app.begin().await.expect("begin");
    let named = || slot().lease(LeaseId::new(7).expect("an id"));
    assert!(limiter.within(&mut tx).limit(named()).await.expect("a decision").is_allowed());
    assert!(limiter.within(&mut tx).renew(named()).await.expect("an answer"));
    assert!(limiter.within(&mut tx).release(named()).await.expect("an answer"));
    tx.commit().await.expect("commit");

    #[cfg(feature = "reqwest")]
    pause(&limiter).await;

    let queue = Queue::new(&limiter, "q").expect("a queue");
    let job = |how: &str| Job::new(("jobs", KEY), &how).expect("a job").group(KEY).max_attempts(2);
    let full = || Job::new([Item::new("full", KEY), Item::new("jobs", KEY)], &KEY).expect("a job").unique_id(KEY);
    let _ = queue.enqueue(full()).await.expect("an answer").enforce().expect("a ticket");
    let _ = queue.enqueue(full()).await.expect("an answer").enforce().expect("a duplicate");
    assert!(queue.enqueue(full().unique_id("other")).await.expect("an answer").is_denied());
    let _ = queue.enqueue(Job::new(("nope", KEY), &1).expect("a job")).await.expect_err("an unknown limit");
    for enqueued in queue.enqueue_all([job("wait"), job("fail")]).await.expect("answers") {
        let _ = enqueued.enforce().expect("a ticket");
    }
    let mut tx = database.app.begin().await.expect("begin");
    let _ = queue.within(&mut tx).enqueue(job("give up")).await.expect("an answer").enforce().expect("a ticket");
    let _ = queue.within(&mut tx).enqueue_all([job("done")]).await.expect("answers");
    tx.commit().await.expect("commit");
    let waited = Arc::new(AtomicBool::new(false));
    let handler = handler_fn(move |job, _| {
        let waited = Arc::clone(&waited);
        Box::pin(async move {
            match job.payload::<String>()?.as_str() {
                "wait" if !waited.swap(true, Ordering::Relaxed) => Ok(Finish::Wait(Duration::from_millis(1))),
                "fail" if job.attempt == 1 => Err("no".into()),
                "give up" => Ok(Finish::GiveUp("no".to_owned())),
                _ => Ok(Finish::Done),
            }
        })
    });
    let all = async {
        while in_state(&queue, JobState::Done).await < 4 || in_state(&queue, JobState::Dead).await < 1 {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    let worker = queue.worker(quick(), handler).expect("a worker");
    let report = tokio::time::timeout(Duration::from_secs(120), worker.run(all)).await.expect("in time");
    let report = report.expect("a report");
    assert!(report.waited == 1 && report.failed == 1 && report.dead == 1 && report.done == 4, "{report:?}");

    database.execute("UPDATE rate_limit.rate_limits SET idle_at = 0").await;
    assert!(limiter.prune().await.expect("pruned") > 0);
    database.rivals_always_win().await;
    let hurried = gate::limiter(&database.app, limits(), |config| {
        config.retry.max_attempts = 3;
    });
    let error = hurried.limit(("many", KEY)).await.expect_err("no attempt is left");
    assert_eq!(error.code(), "retries_exhausted");
}

#[tokio::test]
async fn the_spans_match_the_interface() {
    let spans = Spans::default();
    let _traced = watch(spans.clone());
    let database = Database::migrated().await;
    everything(&database).await;
    let shown = spans.shown();

    let mut promised: BTreeMap<String, BTreeMap<String, (String, BTreeSet<String>)>> = BTreeMap::new();
    let mut name = String::new();
    for row in table("Spans", "| span ") {
        if let Some(next) = words(&row[0]).pop_first() {
            name = next;
        }
        let field = words(&row[1]).pop_first().expect("a field");
        promised.entry(name.clone()).or_default().insert(field, (row[2].clone(), words(&row[3])));
    }
    let names: BTreeSet<&str> = shown.iter().map(|span| span.metadata.name()).collect();
    assert_eq!(names.into_iter().collect::<Vec<_>>(), promised.keys().map(String::as_str).collect::<Vec<_>>());

    let mut seen: BTreeMap<(&str, &str), BTreeSet<String>> = BTreeMap::new();
    for span in &shown {
        let (name, promised) = (span.metadata.name(), &promised[span.metadata.name()]);
        let fields: BTreeSet<&str> = span.metadata.fields().iter().map(|field| field.name()).collect();
        assert_eq!(fields, promised.keys().map(String::as_str).collect(), "{name}");
        assert_eq!((span.metadata.target(), span.metadata.level().as_str()), ("pg_limiter", "DEBUG"));
        for (field, value) in &span.fields {
            use crate::support::spans::Value;
            let (kind, text) = match value {
                Value::Text(text) => ("text", text.clone()),
                Value::Number(number) => ("number", number.to_string()),
            };
            assert_eq!(kind, promised[*field].0, "{name}.{field}");
            assert!(!text.contains(PART), "{name}.{field}: {text}");
            seen.entry((name, field)).or_default().insert(text);
        }
        let outcome = span.text("outcome");
        assert!(promised["outcome"].1.contains(outcome), "{name}: {outcome:?}");
    }
    // Every documented field was seen, and every word of each closed set.
    for (name, fields) in &promised {
        for (field, (_, words)) in fields {
            let Some(seen) = seen.get(&(name.as_str(), field.as_str())) else {
                panic!("{name}.{field} was never recorded")
            };
            if matches!(field.as_str(), "op" | "transaction") {
                assert_eq!(seen, words, "{name}.{field}");
            }
        }
    }
    let call = |op: &str, transaction: &str, outcome: &str| {
        let mut calls = shown.iter().filter(|span| span.text("op") == op && span.text("transaction") == transaction);
        calls.find(|span| span.text("outcome") == outcome).cloned().expect(op)
    };
    let denied = call("limit", "own", "denied");
    assert_eq!((denied.text("limits"), denied.text("denied_by")), ("two,many", "two"));
    assert!(denied.number("retry_after_ms") > 1e9);
    assert_eq!(call("limit", "own", "error").text("error"), "invalid");
    assert_eq!(call("acquire", "own", "denied").text("denied_by"), "slots");
    assert_eq!(call("acquire", "own", "error").text("error"), "invalid");
    for (op, transaction) in [("release", "own"), ("renew", "own"), ("release", "caller"), ("renew", "caller")] {
        assert!(call(op, transaction, "done").text("limits").starts_with("slots"), "{op}");
    }
    assert_eq!(call("until_ready", "own", "allowed").number("attempts"), 1.0);
    // Calls in a unit of work are its children.
    let within = call("limit", "caller", "allowed");
    assert_eq!(within.parent.map(|place| shown[place].metadata.name()), Some("pg_limiter.transaction"));
    let work: Vec<f64> = spans.named("pg_limiter.transaction").iter().map(|span| span.number("attempts")).collect();
    assert_eq!(work, [1.0, 2.0]);
    // A batch follows from each of its calls.
    let batches = spans.named("pg_limiter.batch");
    let largest = batches.iter().max_by_key(|batch| batch.follows.len()).expect("a batch");
    assert_eq!((largest.follows.len(), largest.number("calls"), largest.parent), (5, 5.0, None));
    assert!(largest.follows.iter().all(|place| shown[*place].text("op") == "limit"));
    assert!(batches.iter().any(|batch| batch.text("outcome") == "conflict" && batch.number("attempt") == 3.0));
    assert!(batches.iter().any(|batch| batch.text("op") == "enqueue" && batch.follows.len() == 1));
}

/// Without a subscriber for DEBUG, no span is created.
#[tokio::test]
async fn spans_exist_only_at_the_debug_level() {
    #[derive(Clone)]
    struct Coarse(Spans);
    impl tracing::Subscriber for Coarse {
        fn enabled(&self, metadata: &tracing::Metadata<'_>) -> bool {
            *metadata.level() <= tracing::Level::INFO && metadata.target().starts_with("pg_limiter")
        }
        fn new_span(&self, span: &tracing::span::Attributes<'_>) -> tracing::span::Id {
            self.0.new_span(span)
        }
        fn record(&self, _: &tracing::span::Id, _: &tracing::span::Record<'_>) {}
        fn record_follows_from(&self, _: &tracing::span::Id, _: &tracing::span::Id) {}
        fn event(&self, _: &tracing::Event<'_>) {}
        fn enter(&self, _: &tracing::span::Id) {}
        fn exit(&self, _: &tracing::span::Id) {}
    }
    let spans = Spans::default();
    let _traced = watch(Coarse(spans.clone()));
    let database = Database::migrated().await;
    everything(&database).await;
    assert!(spans.shown().is_empty(), "{:?}", spans.shown());
}

#[cfg(feature = "metrics")]
mod metrics {
    use ::metrics_util::MetricKind;
    use ::metrics_util::debugging::{DebugValue, DebuggingRecorder, Snapshotter};

    use pg_limiter::DenialMemory;

    use super::*;

    /// The number of pauses that third parties demand.
    const PAUSES: usize = if cfg!(feature = "reqwest") { 1 } else { 0 };

    type Labels = BTreeMap<String, String>;

    #[derive(Debug)]
    struct Series {
        name: String,
        kind: &'static str,
        unit: Option<String>,
        is_described: bool,
        labels: Labels,
        value: DebugValue,
    }

    fn snapshot(snapshotter: &Snapshotter) -> Vec<Series> {
        let series = snapshotter.snapshot().into_vec().into_iter();
        series
            .map(|(key, unit, description, value)| {
                let (kind, key) = (key.kind(), key.key());
                Series {
                    name: key.name().to_owned(),
                    kind: match kind {
                        MetricKind::Counter => "counter",
                        MetricKind::Gauge => "gauge",
                        MetricKind::Histogram => "histogram",
                    },
                    unit: unit.map(|unit| unit.as_str().to_owned()),
                    is_described: description.is_some(),
                    labels: key.labels().map(|label| (label.key().to_owned(), label.value().to_owned())).collect(),
                    value,
                }
            })
            .collect()
    }

    /// The sum of a counter, or the number of values in a histogram, over all series with these labels.
    fn total(series: &[Series], name: &str, labels: &[(&str, &str)]) -> u64 {
        let fits = |series: &&Series| {
            let has = |(key, value): &(&str, &str)| series.labels.get(*key).is_some_and(|label| label == value);
            series.name == name && labels.iter().all(has)
        };
        let value = |series: &Series| match &series.value {
            DebugValue::Counter(count) => *count,
            DebugValue::Histogram(values) => values.len() as u64,
            DebugValue::Gauge(_) => 0,
        };
        series.iter().filter(fits).map(value).sum()
    }

    #[tokio::test]
    async fn the_metrics_match_the_interface() {
        let recorder = DebuggingRecorder::new();
        let _recorded = ::metrics::set_default_local_recorder(&recorder);
        pg_limiter::observability::metric::describe();
        let database = Database::migrated().await;
        everything(&database).await;
        let series = snapshot(&recorder.snapshotter());

        let describe = |name: &str, kind: &str, unit: &str, labels: BTreeSet<String>| {
            format!("{name}, {kind} of {unit}, by {labels:?}")
        };
        let promised: BTreeSet<String> = table("Metrics", "| metric ")
            .iter()
            .filter(|row| PAUSES == 1 || !row[0].contains("pauses"))
            .map(|row| describe(&words(&row[0]).pop_first().expect("a name"), &row[1], &row[2], words(&row[3])))
            .collect();
        assert_eq!(promised.len(), 15 + PAUSES);
        let seen: BTreeSet<String> = series
            .iter()
            .map(|series| {
                let unit = series.unit.as_deref().unwrap_or("nothing");
                describe(&series.name, series.kind, unit, series.labels.keys().cloned().collect())
            })
            .collect();
        assert_eq!(seen, promised);
        assert!(series.iter().all(|series| series.is_described));

        let closed: BTreeMap<String, BTreeSet<String>> =
            table("Metrics", "| label ").into_iter().map(|row| (row[0].clone(), words(&row[1]))).collect();
        let values = |name: &str, label: &str| -> BTreeSet<String> {
            let series = series.iter().filter(|series| series.name == name);
            series.filter_map(|series| series.labels.get(label).cloned()).collect()
        };
        assert_eq!(values("pg_limiter_decisions_total", "outcome"), closed["`outcome` of decisions"]);
        assert_eq!(values("pg_limiter_call_duration_seconds", "outcome"), closed["`outcome` of calls"]);
        assert_eq!(values("pg_limiter_call_duration_seconds", "transaction"), closed["`transaction`"]);
        let mut ops = words(&table("Spans", "| span ")[0][3]);
        ops.extend(["enqueue", "transaction"].map(ToOwned::to_owned));
        assert_eq!(values("pg_limiter_call_duration_seconds", "op"), ops);
        assert_eq!(values("pg_limiter_limits_reloads_total", "outcome"), closed["`outcome` of reloads"]);
        assert_eq!(values("pg_limiter_queue_jobs", "state"), closed["`state`"]);
        assert!(values("pg_limiter_job_duration_seconds", "outcome").is_subset(&closed["`outcome` of jobs"]));
        assert!(values("pg_limiter_retries_total", "cause").is_subset(&closed["`cause`"]));
        assert_eq!(values("pg_limiter_errors_total", "kind").len(), 2);
        assert_eq!(total(&series, "pg_limiter_pauses_total", &[("limit", "gate")]), PAUSES as u64);
        assert_eq!(total(&series, "pg_limiter_lost_leases_total", &[("limit", "slots")]), 2);
        assert_eq!(total(&series, "pg_limiter_decisions_total", &[("limit", "slots"), ("outcome", "denied")]), 1);
        let errors = &[("op", "acquire"), ("kind", "invalid")];
        assert_eq!(total(&series, "pg_limiter_errors_total", errors), 1);
        for series in &series {
            assert!(!format!("{:?}", series.labels).contains(PART), "{series:?}");
        }
    }

    #[tokio::test]
    async fn decision_metrics_add_up_to_the_calls() {
        let recorder = DebuggingRecorder::new();
        let _recorded = ::metrics::set_default_local_recorder(&recorder);
        let database = Database::migrated().await;
        let limiter = gate::limiter(&database.app, limits(), |config| {
            config.remember_denials = Some(DenialMemory::default());
        });
        for _ in 0..4 {
            let _ = limiter.limit(("two", "k")).await.expect("a decision");
        }
        let asked = limiter.batches();
        let _ = limiter.limit(("two", "k")).await.expect("a decision");
        assert_eq!(limiter.batches(), asked, "from memory");
        for _ in 0..3 {
            let items = [Item::new("two", "k"), Item::new("many", "k"), Item::new("many", "l")];
            assert!(limiter.limit(items).await.expect("a decision").is_denied());
        }
        let _ = limiter.check(("two", "k")).await.expect("a decision");
        let mut tx = database.app.begin().await.expect("begin");
        assert!(limiter.within(&mut tx).limit(("many", "k")).await.expect("a decision").is_allowed());
        tx.rollback().await.expect("rollback");
        let series = snapshot(&recorder.snapshotter());
        let decisions = |limit: &str, outcome: &str| {
            total(&series, "pg_limiter_decisions_total", &[("limit", limit), ("outcome", outcome)])
        };
        assert_eq!(["allowed", "denied", "unused", "reserved"].map(|word| decisions("two", word)), [2, 6, 0, 0]);
        assert_eq!(["allowed", "denied", "unused", "reserved"].map(|word| decisions("many", word)), [1, 0, 6, 0]);
        let durations = |labels: &[(&str, &str)]| total(&series, "pg_limiter_call_duration_seconds", labels);
        assert_eq!(durations(&[("op", "limit")]), 9);
        assert_eq!(durations(&[("op", "limit"), ("transaction", "caller")]), 1);
        assert_eq!(durations(&[("op", "limit"), ("outcome", "denied")]), 6);
        assert_eq!(durations(&[("op", "check"), ("outcome", "denied")]), 1);
        assert_eq!(total(&series, "pg_limiter_batch_calls", &[]), limiter.batches());
    }

    #[tokio::test]
    async fn the_lag_of_a_job_is_measured_on_the_clock_of_the_database() {
        let recorder = DebuggingRecorder::new();
        let _recorded = ::metrics::set_default_local_recorder(&recorder);
        let database = Database::migrated().await;
        let queue = Queue::new(&gate::limiter(&database.app, limits(), |_| {}), "late").expect("a queue");
        for _ in 0..3 {
            let _ = queue.enqueue(Job::new(("jobs", "g"), &1).expect("a job")).await.expect("an answer");
        }
        let late = Duration::from_millis(400);
        tokio::time::sleep(late).await;
        let done =
            crate::queue::work_until_done(&queue, quick(), handler_fn(|_, _| Box::pin(async { Ok(Finish::Done) })), 3);
        assert_eq!(done.await.done, 3);
        let series = snapshot(&recorder.snapshotter());
        let lags = series.iter().find(|series| series.name == "pg_limiter_queue_lag_seconds").expect("lags");
        assert_eq!(lags.labels.get("queue").map(String::as_str), Some("late"));
        let DebugValue::Histogram(lags) = &lags.value else { panic!("{lags:?}") };
        assert!(lags.len() == 3 && lags.iter().all(|lag| lag.0 >= late.as_secs_f64()), "{lags:?}");
        let done = total(&series, "pg_limiter_job_duration_seconds", &[("queue", "late"), ("outcome", "done")]);
        assert_eq!(done, 3);
        let enqueued = total(&series, "pg_limiter_enqueued_total", &[("queue", "late"), ("outcome", "scheduled")]);
        assert_eq!(enqueued, 3);
    }

    /// The gauges with these names, by queue and state; NaN as `None`.
    fn gauges(series: &[Series], queue: &str) -> BTreeMap<String, Option<f64>> {
        let of_queue = series.iter().filter(|series| series.labels.get("queue").is_some_and(|label| label == queue));
        of_queue
            .filter_map(|series| match &series.value {
                DebugValue::Gauge(value) => {
                    let state = series.labels.get("state").unwrap_or(&series.name).clone();
                    Some((state, Some(value.0).filter(|value| !value.is_nan())))
                }
                _ => None,
            })
            .collect()
    }

    #[tokio::test]
    async fn gauges_show_the_jobs_of_a_queue_while_a_worker_reads_them() {
        const OVERDUE: &str = "pg_limiter_queue_overdue_seconds";
        const BLOCKED: &str = "pg_limiter_queue_blocked_jobs";
        let recorder = DebuggingRecorder::new();
        let _recorded = ::metrics::set_default_local_recorder(&recorder);
        let database = Database::migrated().await;
        let queue = Queue::new(&gate::limiter(&database.app, limits(), |_| {}), "gauged").expect("a queue");
        let states = ["scheduled", "available", "available", "running", "dead", "dead", "dead", "done", "cancelled"];
        for (nth, state) in states.into_iter().enumerate() {
            let group = if nth < 2 { "late" } else { "held" };
            let _ = queue.enqueue(Job::new(("jobs", group), &1).expect("a job")).await.expect("an answer");
            let sql = format!(
                "UPDATE rate_limit.jobs SET state = '{state}', run_at = run_at - 90000000 * {}, finished_at = enqueued_at, \
                   lease_until = enqueued_at + 3600000000 WHERE id = {}",
                if group == "late" { 1 } else { 10 },
                nth + 1
            );
            database.execute(&sql).await;
        }
        // A job is not late while it waits because its handler returned `Wait`.
        database
            .execute("INSERT INTO rate_limit.groups (queue, key, held_until) SELECT 'gauged', 'held', rate_limit._clock() + 3600000000")
            .await;
        // Workers that know none of the limits do not start the jobs.
        let unknown = Limits::new().define("unknown", Limit::token_bucket(1, CENTURY)).expect("limits");
        let idle = Queue::new(&gate::limiter(&database.app, unknown, |_| {}), "gauged").expect("a queue");
        let stop = tokio::sync::watch::Sender::new(false);
        let workers = [(); 2].map(|()| {
            let worker =
                idle.worker(quick(), handler_fn(|_, _| Box::pin(async { Ok(Finish::Done) }))).expect("a worker");
            let mut stopped = stop.subscribe();
            tokio::spawn(async move { worker.run(async move { drop(stopped.wait_for(|stop| *stop).await) }).await })
        });
        let read = async || loop {
            let seen = gauges(&snapshot(&recorder.snapshotter()), "gauged");
            if seen.get(OVERDUE).is_some_and(Option::is_some) {
                break seen;
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        };
        let mut seen = tokio::time::timeout(Duration::from_secs(60), read()).await.expect("gauges");
        let overdue = seen.remove(OVERDUE).flatten().expect("a time");
        assert!((90.0..600.0).contains(&overdue), "{overdue}");
        let blocked = seen.remove(BLOCKED).flatten().expect("a number");
        assert!((0.0..=1.0).contains(&blocked), "{blocked}: the scheduled job, once a worker has looked at it");
        let expected = [("scheduled", 1.0), ("available", 2.0), ("running", 1.0), ("dead", 3.0)];
        assert_eq!(seen, expected.map(|(state, jobs)| (state.to_owned(), Some(jobs))).into());

        // Without a worker the gauges are unknown, and do not keep their last values.
        stop.send_replace(true);
        for worker in workers {
            worker.await.expect("a task").expect("a report");
        }
        let seen = gauges(&snapshot(&recorder.snapshotter()), "gauged");
        assert!(seen.len() == 6 && seen.values().all(Option::is_none), "{seen:?}");
    }

    #[cfg(feature = "tower")]
    #[tokio::test]
    async fn denials_that_a_shadow_layer_lets_through_are_counted() {
        use bytes::Bytes;
        use http_body_util::{Empty, Full};
        use pg_limiter::web::{ClientAddress, PeerAddress, RateLimitLayer};
        use tower::{Layer, ServiceExt};

        let recorder = DebuggingRecorder::new();
        let _recorded = ::metrics::set_default_local_recorder(&recorder);
        let database = Database::migrated().await;
        let layer = RateLimitLayer::new(gate::limiter(&database.app, limits(), |_| {}));
        let layer = layer.limit("two", ClientAddress::direct()).expect("a limit").shadow();
        let service = layer.layer(tower::service_fn(|_: http::Request<Empty<Bytes>>| async {
            Ok::<_, std::convert::Infallible>(http::Response::new(Full::<Bytes>::default()))
        }));
        for _ in 0..5 {
            let mut request = http::Request::new(Empty::new());
            request.extensions_mut().insert(PeerAddress("192.0.2.1".parse().expect("an address")));
            let response = service.clone().oneshot(request).await.expect("infallible");
            assert_eq!(response.status(), 200);
        }
        let series = snapshot(&recorder.snapshotter());
        assert_eq!(total(&series, "pg_limiter_shadow_denials_total", &[("limit", "two")]), 3);
        let denied = [("limit", "two"), ("outcome", "denied")];
        assert_eq!(total(&series, "pg_limiter_decisions_total", &denied), 3);
    }

    #[tokio::test]
    async fn a_call_dropped_before_its_answer_is_not_counted() {
        let recorder = DebuggingRecorder::new();
        let _recorded = ::metrics::set_default_local_recorder(&recorder);
        let database = Database::migrated().await;
        let limiter = gate::limiter(&database.app, limits(), |_| {});
        let in_no_time = tokio::time::timeout(Duration::ZERO, limiter.limit(("many", "k")));
        assert!(in_no_time.await.is_err());
        assert!(limiter.limit(("many", "l")).await.expect("a decision").is_allowed());
        let series = snapshot(&recorder.snapshotter());
        assert_eq!(total(&series, "pg_limiter_decisions_total", &[]), 1);
        assert_eq!(total(&series, "pg_limiter_call_duration_seconds", &[]), 1);
    }
}
