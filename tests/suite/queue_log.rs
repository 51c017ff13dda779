//! The log of jobs that were not done: a failed attempt is a warning, a dead job an error, and neither shows what a job contains.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use pg_limiter::queue::{Finish, Job, JobState, Queue, WorkerConfig, handler_fn};
use pg_limiter::sqlx;
use pg_limiter::{Limit, Limits};
use tracing::field::{Field, Visit};
use tracing::{Level, Metadata, Subscriber};

use crate::queue::until_in_state;
use crate::support::{Database, scheduled, watch};

type Fields = BTreeMap<&'static str, String>;

/// Keeps the events of level WARN and ERROR, with their fields.
#[derive(Clone, Default)]
pub struct Log(Arc<Mutex<Vec<(Level, Fields)>>>);

struct Visitor(Fields);

impl Visit for Visitor {
    fn record_debug(&mut self, field: &Field, value: &dyn std::fmt::Debug) {
        self.0.insert(field.name(), format!("{value:?}").trim_matches('"').to_owned());
    }
}

impl Subscriber for Log {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.target().starts_with("pg_limiter") && metadata.is_event() && *metadata.level() <= Level::WARN
    }
    fn new_span(&self, _: &tracing::span::Attributes<'_>) -> tracing::span::Id {
        tracing::span::Id::from_u64(1)
    }
    fn record(&self, _: &tracing::span::Id, _: &tracing::span::Record<'_>) {}
    fn record_follows_from(&self, _: &tracing::span::Id, _: &tracing::span::Id) {}
    fn event(&self, event: &tracing::Event<'_>) {
        let mut visitor = Visitor(Fields::new());
        event.record(&mut visitor);
        self.0.lock().expect("the log").push((*event.metadata().level(), visitor.0));
    }
    fn enter(&self, _: &tracing::span::Id) {}
    fn exit(&self, _: &tracing::span::Id) {}
}

impl Log {
    /// The level, the queue, the attempt and the reason of the events about a job.
    fn about(&self, job: i64) -> Vec<(Level, String, String, String)> {
        let log = self.0.lock().expect("the log");
        let of_job = log.iter().filter(|(_, fields)| fields.get("job") == Some(&job.to_string()));
        of_job
            .map(|(level, fields)| {
                let field = |name| fields.get(name).cloned().unwrap_or_default();
                (*level, field("queue"), field("attempt"), field("reason"))
            })
            .collect()
    }

    /// This field of the warnings that have it.
    pub fn warnings_with(&self, field: &str) -> Vec<String> {
        let log = self.0.lock().expect("the log");
        let warnings = log.iter().filter(|(level, _)| *level == Level::WARN);
        warnings.filter_map(|(_, fields)| fields.get(field).cloned()).collect()
    }

    fn text(&self) -> String {
        format!("{:?}", self.0.lock().expect("the log"))
    }
}

const SECRET: &str = "anna@example.org";

fn events(queue: &str, expected: &[(Level, u32, &str)]) -> Vec<(Level, String, String, String)> {
    expected
        .iter()
        .map(|(level, attempt, reason)| (*level, queue.to_owned(), attempt.to_string(), (*reason).to_owned()))
        .collect()
}

#[tokio::test]
async fn failed_attempts_are_warnings_and_dead_jobs_are_errors() {
    let database = Database::migrated().await;
    let log = Log::default();
    let _watched = watch(log.clone());
    let limits = Limits::new().define("a", Limit::token_bucket(1000, Duration::from_secs(1))).expect("a limit");
    let queue = Queue::new(&database.limiter(limits), "mails").expect("a queue");
    let mut ids = BTreeMap::new();
    for (way, attempts) in
        [("error", 3), ("panic", 2), ("sql", 1), ("give up", 9), ("wait", 2), ("done", 1), ("wait once", 1)]
    {
        let job = Job::new(("a", SECRET), &(way, SECRET)).expect("a job").group(way).max_attempts(attempts);
        let job = job.unique_id(format!("{way} {SECRET}"));
        ids.insert(way, scheduled(&queue.enqueue(job).await.expect("an answer")).id);
    }
    let mut config = WorkerConfig::default();
    (config.backoff, config.max_waits, config.poll) = (Duration::from_millis(1), Some(1), Duration::from_millis(50));
    let handler = handler_fn(|job, tx| {
        Box::pin(async move {
            let (way, secret): (String, String) = job.payload()?;
            match &*way {
                "error" => Err(format!("cannot write to {secret}").into()),
                "panic" => panic!("no such address: {secret}"),
                "sql" => {
                    sqlx::query("SELECT $1::integer").bind(secret).execute(&mut *tx).await?;
                    Ok(Finish::Done)
                }
                "give up" => Ok(Finish::GiveUp(format!("{secret} is gone"))),
                "wait" => Ok(Finish::Wait(Duration::from_millis(1))),
                "wait once" if job.waits == 0 => Ok(Finish::Wait(Duration::from_millis(1))),
                _ => Ok(Finish::Done),
            }
        })
    });
    let worker = queue.worker(config, handler).expect("a worker");
    let done = async {
        until_in_state(&queue, JobState::Dead, 5).await;
        until_in_state(&queue, JobState::Done, 2).await;
    };
    tokio::time::timeout(Duration::from_secs(60), worker.run(done)).await.expect("in time").expect("a report");
    let (warn, error) = (Level::WARN, Level::ERROR);
    for (way, expected) in [
        ("error", &[(warn, 1, "failed"), (warn, 2, "failed"), (error, 3, "failed")][..]),
        ("panic", &[(warn, 1, "failed"), (error, 2, "failed")]),
        ("sql", &[(error, 1, "failed")]),
        ("give up", &[(error, 1, "given_up")]),
        ("wait", &[(warn, 1, "held_too_often"), (error, 2, "held_too_often")]),
        ("done", &[]),
        ("wait once", &[]),
    ] {
        assert_eq!(log.about(ids[way]), events("mails", expected), "{way}");
    }
    assert!(!log.text().contains("anna") && !log.text().contains("example"), "{}", log.text());
}

#[tokio::test]
async fn a_wait_that_is_too_long_is_a_warning() {
    let database = Database::migrated().await;
    let log = Log::default();
    let _watched = watch(log.clone());
    let limits = Limits::new().define("a", Limit::token_bucket(1000, Duration::from_secs(1))).expect("a limit");
    let queue = Queue::new(&database.limiter(limits), "mails").expect("a queue");
    let id = scheduled(&queue.enqueue(Job::new(("a", SECRET), &1).expect("a job")).await.expect("an answer")).id;
    let mut config = WorkerConfig::default();
    config.longest_wait = Duration::from_secs(90);
    let handler = handler_fn(|_, _| Box::pin(async { Ok(Finish::Wait(Duration::from_secs(100_000_000))) }));
    let worker = queue.worker(config, handler).expect("a worker");
    let watched = queue.clone();
    worker.run(async move { until_in_state(&watched, JobState::Available, 1).await }).await.expect("a report");
    assert_eq!(log.about(id), events("mails", &[(Level::WARN, 1, "")]));
    for part in ["100000000s", "90s", "WorkerConfig::longest_wait"] {
        assert!(log.text().contains(part), "{part}: {}", log.text());
    }
    assert!(!log.text().contains("anna"), "{}", log.text());
}

/// A worker that died has failed its jobs, and another worker reports that.
#[tokio::test]
async fn a_job_of_a_dead_worker_is_a_failed_attempt() {
    let database = Database::migrated().await;
    let log = Log::default();
    let _watched = watch(log.clone());
    let limits = Limits::new().define("a", Limit::token_bucket(1000, Duration::from_secs(1))).expect("a limit");
    let queue = Queue::new(&database.limiter(limits), "mails").expect("a queue");
    let job = Job::new(("a", SECRET), &SECRET).expect("a job").max_attempts(2);
    let id = scheduled(&queue.enqueue(job).await.expect("an answer")).id;
    let mut config = WorkerConfig::default();
    config.poll = Duration::from_millis(50);
    let handler = handler_fn(|_, _| Box::pin(async { Ok(Finish::Done) }));
    let worker = queue.worker(config, handler).expect("a worker");
    let lapse = "UPDATE rate_limit.jobs SET state = 'running', starts = starts + 1, started_at = run_at, worker = 'gone', lease_until = 1
        WHERE state = 'scheduled'";
    let stop = async {
        until_in_state(&queue, JobState::Dead, 1).await;
    };
    // Each time the job is due again, a worker that is gone has it.
    database
        .execute(&format!(
            "CREATE FUNCTION gone() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
               IF NEW.state = 'scheduled' THEN
                 NEW.state := 'running'; NEW.starts := NEW.starts + 1; NEW.worker := 'gone'; NEW.lease_until := 1;
                 NEW.started_at := NEW.run_at;
               END IF;
               RETURN NEW;
             END $$;
             CREATE TRIGGER gone BEFORE UPDATE ON rate_limit.jobs FOR EACH ROW EXECUTE FUNCTION gone();
             {lapse}"
        ))
        .await;
    tokio::time::timeout(Duration::from_secs(60), worker.run(stop)).await.expect("in time").expect("a report");
    assert_eq!(log.about(id), events("mails", &[(Level::WARN, 1, "lapsed"), (Level::ERROR, 2, "lapsed")]));
    assert!(!log.text().contains("anna"), "{}", log.text());
}
