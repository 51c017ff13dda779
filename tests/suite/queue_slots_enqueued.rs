//! Jobs with slots, as they are enqueued: with other jobs, twice, with hashed keys, and with slots that a worker does not know.

use std::sync::Arc;
use std::time::Duration;

use pg_limiter::queue::{Job, JobState, Queue};
use pg_limiter::{Error, InvalidCall, InvalidJob, Item, KeySecret, Kind, Limit, Limits};
use tokio::sync::Semaphore;

use crate::queue::{in_state, queue_with, quick, work_until_done};
use crate::queue_slots::{background, done, enqueue, free, gated, limits, sleepy, slots, state, until_in_state};
use crate::support::gate::limiter;
use crate::support::{Database, scheduled, sqlx};

/// An enqueue writes each job once, with its slots, tokens and unique id.
#[tokio::test]
async fn an_enqueue_writes_no_job_twice() {
    let database = Database::migrated().await;
    let queue = queue_with(&database, limits()).await;
    let mut tx = database.app.begin().await.expect("begin");
    let slots_and_tokens = [Item::new("one", "k"), Item::new("slow", "k"), Item::new("two", "k").count(2)];
    let jobs = [
        Job::new(("one", "a"), &1).expect("a job"),
        Job::new(("fast", "k"), &1).expect("a job").group("b"),
        Job::new(slots_and_tokens, &1).expect("a job").unique_id("u").group("c"),
        Job::new(("two", "d"), &1).expect("a job").unique_id("u"),
    ];
    let answers = queue.within(&mut tx).enqueue_all(jobs).await.expect("answers");
    let written = "SELECT pg_stat_get_xact_tuples_inserted(oid)::bigint, pg_stat_get_xact_tuples_updated(oid)::bigint \
                   FROM pg_class WHERE oid = 'rate_limit.jobs'::regclass";
    let written: (i64, i64) = sqlx::query_as(written).fetch_one(&mut *tx).await.expect("what was written");
    assert_eq!(written, (3, 0), "inserted, updated");
    tx.commit().await.expect("commit");
    let mut stored = Vec::new();
    for answer in &answers[..3] {
        let job = queue.job(scheduled(answer).id).await.expect("an answer").expect("a job");
        stored.push(
            job.slots.iter().map(|slot| format!("{} {} {}", slot.limit, slot.key, slot.count)).collect::<Vec<_>>(),
        );
    }
    assert_eq!(stored, [vec!["one a 1"], vec![], vec!["one k 1", "two k 2"]]);
}

#[tokio::test]
async fn slots_that_can_never_be_taken_are_rejected_when_the_job_is_enqueued() {
    let database = Database::migrated().await;
    let queue = queue_with(&database, limits()).await;
    let error = async |job: pg_limiter::Call| {
        let refused = queue.enqueue(Job::new(job, &1).expect("a job")).await;
        match refused.expect_err("an error") {
            Error::Invalid(error) => error,
            error => panic!("{error}"),
        }
    };
    assert!(matches!(error(("one", "k", 2).into()).await, InvalidCall::CountExceedsCapacity { count: 2.0, .. }));
    assert!(matches!(error(("two", "k", 1.5).into()).await, InvalidCall::Slots { count: 1.5, .. }));
    assert!(matches!(error(("two", "k", 0).into()).await, InvalidCall::Slots { count: 0.0, .. }));
    let reserves = pg_limiter::Call::from(("one", "k")).reserve();
    assert!(matches!(error(reserves).await, InvalidCall::ReserveUnsupported { kind: Kind::Concurrency, .. }));
    let leaves = Item::new("one", "k").leave(1).into();
    assert!(matches!(error(leaves).await, InvalidCall::HeadroomUnsupported { .. }));
    let leased = Item::new("one", "k").lease(pg_limiter::LeaseId::random());
    let refused = queue.enqueue(Job::new(leased, &1).expect("a job")).await.expect_err("an error");
    assert!(matches!(refused, Error::InvalidJob(InvalidJob::Lease)), "{refused}");
    // Slots are no tokens: there is nothing to settle.
    let id = slots(&queue, "k", "one", "k").await;
    assert!(matches!(queue.settle(id, ("one", "k")).await.expect_err("an error"), Error::Invalid(_)));
    assert_eq!(in_state(&queue, JobState::Scheduled).await, 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn jobs_with_and_without_slots_are_enqueued_together() {
    let database = Database::migrated().await;
    let queue = queue_with(&database, limits()).await;
    let job = |call: pg_limiter::Call| Job::new(call, &1).expect("a job");
    let jobs = [
        job(("one", "a").into()),
        job([Item::new("fast", "a"), Item::new("slow", "a")].into()),
        job([Item::new("two", "a"), Item::new("fast", "b"), Item::new("one", "b")].into()).unique_id("twice"),
        job(("two", "c").into()).unique_id("twice"),
    ];
    let estimate = queue.estimate(jobs[0].clone()).await.expect("an estimate");
    assert_eq!(crate::support::estimated(&estimate).1, Duration::ZERO);
    let enqueued = queue.enqueue_all(jobs).await.expect("answers");
    let ids: Vec<i64> = enqueued.into_iter().map(|one| one.enforce().expect("a ticket").id).collect();
    assert_eq!(ids[2], ids[3]);
    let mut stored = Vec::new();
    for id in &ids[..3] {
        let info = queue.job(*id).await.expect("an answer").expect("a job");
        let named = |items: &[pg_limiter::queue::JobItem]| {
            items.iter().map(|item| format!("{}/{}", item.limit, item.key)).collect::<Vec<_>>().join(" ")
        };
        stored.push((named(&info.items), named(&info.slots)));
    }
    let expected = [("", "one/a"), ("fast/a slow/a", ""), ("fast/b", "two/a one/b")];
    assert_eq!(stored, expected.map(|(items, slots)| (items.to_owned(), slots.to_owned())));
    work_until_done(&queue, sleepy(), done(), 3).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn hashed_keys_name_the_same_slots() {
    let database = Database::migrated().await;
    let secret = KeySecret::new([7; 32]).expect("a secret");
    let secret = limiter(&database.app, limits(), |config| config.key_secret = Some(secret));
    let queue = Queue::new(&secret, "q").expect("a queue");
    slots(&queue, "k", "one", "k").await;
    let gate = Arc::new(Semaphore::new(0));
    let worker = background(queue.worker(sleepy(), gated(&gate)).expect("a worker"));
    until_in_state(&queue, JobState::Running, 1).await;
    assert_eq!(free(&queue, "one", "k").await, 0.0);
    gate.add_permits(1);
    until_in_state(&queue, JobState::Done, 1).await;
    while free(&queue, "one", "k").await < 1.0 {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    worker.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_worker_leaves_jobs_with_unknown_slots_alone_and_takes_all_of_fewer_slots() {
    let database = Database::migrated().await;
    let queue = queue_with(&database, limits()).await;
    let first = enqueue(&queue, Job::new(("two", "k", 2), &1).expect("a job")).await;
    enqueue(&queue, Job::new(("fast", "other"), &1).expect("a job")).await;
    let fast = Limit::token_bucket(1_000_000, Duration::from_secs(1));
    let without = queue_with(&database, Limits::new().define("fast", fast).expect("a limit")).await;
    work_until_done(&without, quick(), done(), 1).await;
    assert_eq!(state(&queue, first).await, JobState::Scheduled);
    // The limit has another kind now.
    let other = Limits::new().define("two", fast).expect("a limit");
    let other = queue_with(&database, other).await;
    enqueue(&other, Job::new(("two", "other"), &1).expect("a job")).await;
    work_until_done(&other, quick(), done(), 2).await;
    assert_eq!(state(&queue, first).await, JobState::Scheduled);
    // The limit has fewer slots than the job needs.
    let fewer = Limits::new().define("two", Limit::concurrency(1)).expect("a limit");
    let fewer = queue_with(&database, fewer).await;
    let wait = async {
        while state(&queue, first).await != JobState::Done {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    fewer.worker(quick(), done()).expect("a worker").run(wait).await.expect("a report");
}
