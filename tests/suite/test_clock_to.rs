//! The clock of tests is advanced to a time that a decision or a job has returned.

use std::time::{Duration, SystemTime};

use pg_limiter::queue::{Finish, Job, JobState, Queue, handler_fn};
use pg_limiter::testing::TestClockError;
use pg_limiter::{Limit, Limits};

use crate::queue::{quick, until_in_state};
use crate::support::{Database, scheduled};

const HOUR: Duration = Duration::from_secs(3600);

#[tokio::test]
async fn the_clock_reaches_the_time_and_runs_on() {
    let database = Database::migrated().await;
    let clock = database.test_clock().await;
    let begin = clock.now().await.expect("the time");
    for (nth, odd) in [(1, 0), (2, 1), (3, 999), (4, 1001)] {
        let time = begin + nth * 24 * HOUR + Duration::from_nanos(odd);
        clock.advance_to(time).await.expect("advance");
        let now = clock.now().await.expect("the time");
        assert!(now >= time && now < time + HOUR, "{now:?} after {time:?}");
    }
}

/// A time that the clock has passed already, even a moment ago, is reached.
#[tokio::test]
async fn the_clock_never_goes_back() {
    let database = Database::migrated().await;
    let clock = database.test_clock().await;
    clock.advance(24 * HOUR).await.expect("advance");
    let now = clock.now().await.expect("the time");
    for past in
        [now, now - Duration::from_nanos(1), now - 48 * HOUR, SystemTime::UNIX_EPOCH, SystemTime::UNIX_EPOCH - HOUR]
    {
        clock.advance_to(past).await.expect("nothing to do");
        let later = clock.now().await.expect("the time");
        assert!(later >= now && later < now + HOUR, "{later:?}");
    }
}

#[tokio::test]
async fn a_time_too_far_ahead_and_a_clock_that_is_not_installed_are_errors() {
    let database = Database::migrated().await;
    let clock = database.test_clock().await;
    let now = clock.now().await.expect("the time");
    let century = 36_525 * 24 * HOUR;
    let error = clock.advance_to(now + century + HOUR).await.expect_err("too far");
    assert!(matches!(error, TestClockError::TooFar { .. }), "{error}");
    assert!(clock.now().await.expect("the time") < now + HOUR);
    clock.clone().uninstall().await.expect("removed");
    let error = clock.advance_to(now).await.expect_err("not installed");
    assert!(matches!(error, TestClockError::NotInstalled { .. }), "{error}");
}

/// The job is due exactly then, and the worker of this process wakes up.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_job_runs_when_the_clock_reaches_its_time() {
    let database = Database::migrated().await;
    let clock = database.test_clock().await;
    let limits = Limits::new().define("mails", Limit::token_bucket(1, HOUR).capacity(1)).expect("a limit");
    let queue = Queue::new(&database.limiter(limits), "mails").expect("a queue");
    let mut tickets = Vec::new();
    for nth in 0..3 {
        let enqueued = queue.enqueue(Job::new(("mails", "k"), &nth).expect("a job")).await.expect("an answer");
        tickets.push(scheduled(&enqueued));
    }
    let worker = queue.worker(quick(), handler_fn(|_, _| Box::pin(async { Ok(Finish::Done) }))).expect("a worker");
    let done = async {
        for (nth, ticket) in (1..).zip(&tickets) {
            clock.advance_to(ticket.run_at).await.expect("advance");
            until_in_state(&queue, JobState::Done, nth).await;
            assert_eq!(crate::queue::in_state(&queue, JobState::Done).await, nth);
        }
    };
    tokio::time::timeout(Duration::from_secs(300), worker.run(done)).await.expect("in time").expect("a report");
}

/// `advance_to` a denial's time, seen from the clock.
#[tokio::test]
async fn a_denied_call_is_allowed_at_the_time_of_its_retry() {
    let database = Database::migrated().await;
    let clock = database.test_clock().await;
    let limits = Limits::new().define("a", Limit::fixed_window(1, HOUR)).expect("a limit");
    let limiter = database.limiter(limits);
    limiter.limit(("a", "k")).await.expect("a decision").enforce().expect("allowed");
    let asked = clock.now().await.expect("the time");
    let wait = limiter.limit(("a", "k")).await.expect("a decision").retry_after().expect("denied");
    let answered = clock.now().await.expect("the time");
    clock.advance_to(asked + wait - Duration::from_secs(60)).await.expect("advance");
    assert!(limiter.limit(("a", "k")).await.expect("a decision").is_denied());
    clock.advance_to(answered + wait).await.expect("advance");
    assert!(limiter.limit(("a", "k")).await.expect("a decision").is_allowed());
}
