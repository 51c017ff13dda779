//! The answer to an enqueue with a unique id that a job already has.

use std::time::{Duration, UNIX_EPOCH};

use pg_limiter::queue::{EnqueueOutcome, Enqueued, EstimateOutcome, Job, JobState, Queue, QueueConfig, Ticket};
use pg_limiter::{Error, InvalidJob};

use crate::queue::queue;
use crate::support::gate::CENTURY;
use crate::support::{Database, scheduled};

fn job() -> Job {
    Job::new(("slow", "g"), &1).expect("a job").unique_id("once")
}

async fn enqueue(queue: &Queue) -> Enqueued {
    queue.enqueue(job()).await.expect("an answer")
}

fn duplicate(enqueued: &Enqueued) -> Ticket {
    match enqueued.outcome() {
        EnqueueOutcome::Duplicate(ticket) => ticket,
        other => panic!("{other:?}"),
    }
}

async fn set_state(database: &Database, id: i64, state: JobState) {
    let sql =
        format!("UPDATE rate_limit.jobs SET state = '{state}', finished_at = rate_limit._clock() WHERE id = {id}");
    database.execute(&sql).await;
}

#[tokio::test]
async fn a_duplicate_has_the_state_of_the_job_that_has_the_id() {
    let database = Database::migrated().await;
    let queue = queue(&database).await;
    let first = scheduled(&enqueue(&queue).await);
    assert_eq!(first.state, JobState::Scheduled);
    for state in [JobState::Scheduled, JobState::Available, JobState::Running, JobState::Done] {
        set_state(&database, first.id, state).await;
        let again = duplicate(&enqueue(&queue).await);
        assert_eq!((again.id, again.run_at, again.wait, again.state), (first.id, first.run_at, Duration::ZERO, state));
        let in_one_call = queue.enqueue_all([job(), job()]).await.expect("answers");
        assert_eq!(in_one_call.iter().map(|one| duplicate(one).state).collect::<Vec<_>>(), [state, state]);
        let estimate = queue.estimate(job()).await.expect("an estimate");
        let EstimateOutcome::Scheduled { run_at, .. } = estimate.outcome else { panic!("{estimate:?}") };
        assert_eq!((run_at, estimate.existing.map(|job| (job.id, job.state))), (first.run_at, Some((first.id, state))));
    }
    // A line delays a job that waits, and not one that is done.
    database
        .execute("INSERT INTO rate_limit.groups (queue, key, has_line, lag) VALUES ('q', 'g', true, 60000000)")
        .await;
    assert_eq!(duplicate(&enqueue(&queue).await).run_at, first.run_at);
    set_state(&database, first.id, JobState::Available).await;
    assert!(duplicate(&enqueue(&queue).await).run_at > first.run_at);
    assert_eq!(queue.jobs(None, 10).await.expect("jobs").len(), 1);
}

#[tokio::test]
async fn the_id_of_a_dead_or_cancelled_job_is_free() {
    let database = Database::migrated().await;
    let queue = queue(&database).await;
    for (nth, state) in [JobState::Dead, JobState::Cancelled].into_iter().enumerate() {
        let first = scheduled(&enqueue(&queue).await);
        set_state(&database, first.id, state).await;
        assert_eq!(queue.estimate(job()).await.expect("an estimate").existing, None);
        // In one call, too: the first of them takes the id.
        let both = queue.enqueue_all([job(), job()]).await.expect("answers");
        let second = scheduled(&both[0]);
        assert_eq!((duplicate(&both[1]).id, duplicate(&both[1]).state), (second.id, JobState::Scheduled));
        assert_ne!(second.id, first.id);

        let taken = queue.requeue(first.id).await;
        assert!(
            matches!(taken, Err(Error::InvalidJob(InvalidJob::UniqueIdTaken { id })) if id == first.id),
            "{taken:?}"
        );
        assert_eq!(queue.job(first.id).await.expect("an answer").expect("a job").state, state);
        queue.cancel(second.id).await.expect("an answer");
        assert!(queue.requeue(first.id).await.expect("an answer").is_some());
        // The refused calls took nothing: each round spends one token for good, the reservation of the first job.
        let behind = queue.limiter().peek(("slow", "g")).await.expect("a balance").remaining();
        let spent = 2.0 * (nth as f64 + 1.0);
        assert!((2.0 - spent - behind).abs() < 1e-6, "{behind}");
        set_state(&database, first.id, JobState::Dead).await;
    }
    // A time that cannot come is never promised: the job waits for the tokens of all before it.
    assert!(scheduled(&enqueue(&queue).await).wait > CENTURY);
}

/// The first job with an id may be denied, or come too late. The second one is then scheduled, if its own limits allow it.
#[tokio::test]
async fn jobs_with_the_same_id_in_one_call_are_decided_one_after_the_other() {
    let database = Database::migrated().await;
    let queue = queue(&database).await;
    let job = |limit: &str, id: &str| Job::new((limit, "g"), &1).expect("a job").unique_id(id);
    for id in ["now", "reserved"] {
        let _ = scheduled(&queue.enqueue(job("bounded", id)).await.expect("an answer"));
    }
    let all = [job("bounded", "a"), job("slow", "a"), job("slow", "a"), job("slow", "b")];
    let answers = queue.enqueue_all(all).await.expect("answers");
    assert!(matches!(answers[0].outcome(), EnqueueOutcome::Denied { .. }), "{answers:?}");
    let first = scheduled(&answers[1]);
    assert_eq!(duplicate(&answers[2]).id, first.id);
    let _ = scheduled(&answers[3]);

    let mut config = QueueConfig::default();
    config.turns = true;
    let in_turns = Queue::with_config(queue.limiter(), "in turns", config).expect("a queue");
    for queue in [queue, in_turns] {
        let past = job("fast", "c").run_at(UNIX_EPOCH + Duration::from_secs(1));
        let answers = queue.enqueue_all([past, job("fast", "c"), job("fast", "c")]).await.expect("answers");
        assert!(matches!(answers[0].outcome(), EnqueueOutcome::RunAtPast), "{answers:?}");
        let second = scheduled(&answers[1]);
        assert_eq!(duplicate(&answers[2]).id, second.id);
    }
}
