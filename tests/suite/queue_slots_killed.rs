//! Workers that are killed while their jobs hold slots: never more slots are held than there are, and all jobs are done.

use std::time::Duration;

use pg_limiter::queue::{Finish, Job, JobState, Queue, WorkerConfig, handler_fn};
use pg_limiter::{Item, Limit, Limiter, Limits, sqlx};
use tokio::process::Child;

use crate::queue::in_state;
use crate::support::{Database, process, scheduled};

const URL: &str = "PG_LIMITER_TEST_QUEUE_SLOTS";
const LEASE: Duration = Duration::from_secs(1);
const JOBS: usize = 400;
const SLOTS: u32 = 3;
const PROCESSES: usize = 3;

async fn queue(url: &str) -> Queue {
    let limits = Limits::new()
        .define("slots", Limit::concurrency(SLOTS).lease(LEASE))
        .and_then(|limits| limits.define("rate", Limit::token_bucket(1_000, Duration::from_secs(1))))
        .expect("limits");
    Queue::new(&Limiter::new(Database::pool(url, 8).await, limits), "slots").expect("a queue")
}

/// The entry point of a worker process: [`start`] runs this binary again. The process ends by being killed.
#[test]
fn worker_process() {
    let Ok(url) = std::env::var(URL) else { return };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    runtime.block_on(async {
        let queue = queue(&url).await;
        let mut config = WorkerConfig::default();
        config.concurrency = 4;
        config.lease = LEASE;
        let handler = handler_fn(|_, _| {
            Box::pin(async {
                tokio::time::sleep(Duration::from_millis(10)).await;
                Ok(Finish::Done)
            })
        });
        queue.worker(config, handler).expect("a worker").run(std::future::pending()).await.expect("no end");
    });
}

/// Returns the jobs that are left, and the rows that decide when they run: the most useful first, because logs are cut.
async fn state(database: &Database) -> String {
    let sql = "SELECT concat(
        (SELECT jsonb_agg(jsonb_build_array(
          state, 'starts', starts, 'failures', failures, 'run in us', run_at - rate_limit._clock(), 'lease in us',
          lease_until - rate_limit._clock(), last_error))
          FROM rate_limit.jobs WHERE state <> 'done'),
        '; groups: ', (SELECT jsonb_agg(g) FROM rate_limit.groups AS g),
        '; sessions: ', (SELECT jsonb_agg(jsonb_build_array(state, wait_event, left(query, 60)))
          FROM pg_stat_activity WHERE datname = current_database()),
        '; clock: ', rate_limit._clock(), '; buckets: ', (SELECT jsonb_agg(r) FROM rate_limit.rate_limits AS r))";
    sqlx::query_scalar(sql).fetch_one(&database.pool).await.expect("the state")
}

fn start(database: &Database) -> Child {
    process("queue_slots_killed::worker_process", URL, &database.url)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "takes long: run tests/long"]
async fn killed_workers_free_their_slots_and_all_jobs_are_done() {
    let database = Database::migrated().await;
    database
        .execute(
            "CREATE TABLE writes (nth bigserial PRIMARY KEY, at bigint, leases double precision[]);
             CREATE FUNCTION record() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER AS $$ BEGIN
               INSERT INTO public.writes (at, leases) VALUES (NEW.ts, NEW.detail);
               RETURN NULL;
             END $$;
             CREATE TRIGGER record AFTER INSERT OR UPDATE ON rate_limit.rate_limits FOR EACH ROW
               WHEN (NEW.name = 'slots') EXECUTE FUNCTION record()",
        )
        .await;
    let queue = queue(&database.url).await;
    for nth in 0..JOBS {
        // Two groups share the slots. Some jobs also have a rate, and some take two slots.
        let slots = Item::new("slots", "k").count(1 + u32::from(nth % 7 == 0));
        let items = if nth % 2 == 0 { vec![slots] } else { vec![slots, Item::new("rate", "k")] };
        let job = Job::new(items, &nth).expect("a job").group(format!("{}", nth % 2)).max_attempts(1_000);
        let _ = scheduled(&queue.enqueue(job).await.expect("an answer"));
    }
    let mut workers: Vec<Child> = (0..PROCESSES).map(|_| start(&database)).collect();
    let mut seed = u64::from(std::process::id());
    let jobs = i64::try_from(JOBS).expect("few");
    let mut done = 0;
    for nth in 0.. {
        // Until some more jobs are done: otherwise no job might ever be.
        let before = done;
        let mut looks = 0;
        while done < (before + 30).min(jobs) {
            if looks == 1200 {
                let ended: Vec<_> = workers.iter_mut().map(|worker| worker.try_wait().expect("a worker")).collect();
                panic!("{done} jobs are done, and no more; ended workers {ended:?}: {}", state(&database).await);
            }
            looks += 1;
            tokio::time::sleep(Duration::from_millis(100)).await;
            done = in_state(&queue, JobState::Done).await;
        }
        if done == jobs {
            assert!(nth >= 5, "{nth} workers were killed");
            break;
        }
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        tokio::time::sleep(Duration::from_millis(seed >> 57)).await;
        workers[nth % PROCESSES].kill().await.expect("kill"); // SIGKILL
        workers[nth % PROCESSES] = start(&database);
    }
    for mut worker in workers {
        worker.kill().await.expect("kill");
    }
    let writes: Vec<(i64, Vec<f64>)> = sqlx::query_as("SELECT at, leases FROM writes ORDER BY nth")
        .fetch_all(&database.pool)
        .await
        .expect("the writes");
    let mut reached = 0.0_f64;
    for (at, leases) in &writes {
        let held: f64 = leases[1..].chunks(3).map(|lease| lease[2]).sum();
        assert!(held <= f64::from(SLOTS), "{held} slots were held at {at}");
        assert!(leases[1..].chunks(3).all(|lease| lease[0] > *at as f64), "an ended lease was kept");
        reached = reached.max(held);
    }
    assert_eq!(reached, f64::from(SLOTS), "all slots were used at some time");
    let free = sqlx::query_scalar::<_, i64>("SELECT count(*) FROM rate_limit.jobs WHERE state <> 'done'");
    assert_eq!(free.fetch_one(&database.pool).await.expect("a count"), 0);
    // Every slot is free by the end of the leases.
    for _ in 0..400 {
        if queue.limiter().peek(("slots", "k")).await.expect("a balance").remaining() == f64::from(SLOTS) {
            return;
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    panic!("some slots are never free");
}
