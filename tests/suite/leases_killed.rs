//! Holders that are killed at random: never more slots are held than there are, every slot is free again after the lease, and
//! no release frees another's.

use std::time::{Duration, Instant};

use pg_limiter::sqlx::{self, PgPool};
use pg_limiter::{LeaseId, Limit, Limiter, Limits};
use tokio::process::Child;

use crate::support::{Database, process};

const URL: &str = "PG_LIMITER_TEST_LEASES";
const SLOTS: u32 = 5;
const LEASE: Duration = Duration::from_millis(600);
const HOLDERS: usize = 4;
const PROCESSES: usize = 3;

fn limiter(pool: PgPool) -> Limiter {
    let limits = Limits::new().define("slots", Limit::concurrency(SLOTS).lease(LEASE)).expect("a limit");
    Limiter::new(pool, limits)
}

async fn intend(pool: &PgPool, lease: LeaseId) {
    let sql = "INSERT INTO intended (lease) VALUES ($1) ON CONFLICT DO NOTHING";
    sqlx::query(sql).bind(lease.get()).execute(pool).await.expect("a row");
}

/// The entry point of a process of holders: [`start`] runs this binary again. The process ends by being killed.
#[test]
fn holder_process() {
    let Ok(url) = std::env::var(URL) else { return };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    runtime.block_on(async {
        let pool = Database::pool(&url, 8).await;
        let limiter = limiter(pool.clone());
        let holder = async |nth: usize| {
            loop {
                let acquired = limiter.acquire(("slots", "k", 1 + nth % 2)).await.expect("an answer");
                let Ok(lease) = acquired.into_lease() else {
                    tokio::time::sleep(Duration::from_millis(5)).await;
                    continue;
                };
                let lease = if nth.is_multiple_of(2) { lease.keep_renewed() } else { lease };
                tokio::time::sleep(Duration::from_millis(20)).await;
                // Written before the release, so that every lease that leaves early has a row.
                intend(&pool, lease.id()).await;
                let _ = lease.release().await;
            }
        };
        futures_util::future::join_all((0..HOLDERS).map(holder)).await;
    });
}

fn start(database: &Database) -> Child {
    process("leases_killed::holder_process", URL, &database.url)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn killed_holders_free_their_slots_and_no_others() {
    let database = Database::migrated().await;
    // Each write of the row is recorded, with the leases that it holds by its own time.
    database
        .execute(
            "CREATE TABLE intended (lease bigint PRIMARY KEY);
             CREATE TABLE writes (nth bigserial PRIMARY KEY, at bigint, leases double precision[]);
             CREATE FUNCTION record() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
               INSERT INTO public.writes (at, leases) VALUES (NEW.ts, NEW.detail);
               RETURN NULL;
             END $$;
             CREATE TRIGGER record AFTER INSERT OR UPDATE ON rate_limit.rate_limits FOR EACH ROW EXECUTE FUNCTION record();
             GRANT ALL ON intended, writes, writes_nth_seq TO PUBLIC",
        )
        .await;
    let mut holders: Vec<Child> = (0..PROCESSES).map(|_| start(&database)).collect();
    let pool = &database.pool;
    let mut seed = u64::from(std::process::id());
    let mut writes: i64 = 0;
    for nth in 0..12 {
        let before = writes;
        let began = Instant::now();
        while writes < before + 20 {
            assert!(began.elapsed() < Duration::from_secs(60), "the holders make no progress after {writes} writes");
            tokio::time::sleep(Duration::from_millis(50)).await;
            writes = sqlx::query_scalar("SELECT count(*) FROM writes").fetch_one(pool).await.expect("a number");
        }
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        tokio::time::sleep(Duration::from_millis(seed >> 56)).await;
        holders[nth % PROCESSES].kill().await.expect("kill"); // SIGKILL
        holders[nth % PROCESSES] = start(&database);
    }
    for mut holder in holders {
        holder.kill().await.expect("kill");
    }
    let writes: Vec<(i64, Vec<f64>)> =
        sqlx::query_as("SELECT at, leases FROM writes ORDER BY nth").fetch_all(pool).await.expect("the writes");
    let intended: Vec<i64> = sqlx::query_scalar("SELECT lease FROM intended").fetch_all(pool).await.expect("leases");
    let mut before: Vec<(f64, i64)> = Vec::new();
    let mut ended = 0;
    for (at, leases) in &writes {
        let now: Vec<(f64, i64, f64)> =
            leases[1..].chunks(3).map(|lease| (lease[0], -lease[1] as i64, lease[2])).collect();
        let held: f64 = now.iter().map(|lease| lease.2).sum();
        assert!(held <= f64::from(SLOTS), "{held} slots were held at {at}");
        assert!(now.iter().all(|lease| lease.0 > *at as f64), "an ended lease was kept");
        for (end, id) in before {
            if !now.iter().any(|lease| lease.1 == id) {
                assert!(end <= *at as f64 || intended.contains(&id), "the lease {id} left before its end");
                ended += u32::from(end <= *at as f64);
            }
        }
        before = now.into_iter().map(|(end, id, _)| (end, id)).collect();
    }
    assert!(ended > 0, "no holder was killed while it held slots, in {} writes", writes.len());

    // A statement of a killed process may still run. After that, every slot is free by the end of the leases.
    let limiter = limiter(pool.clone());
    let mut free = 0.0;
    for _ in 0..400 {
        free = limiter.peek(("slots", "k")).await.expect("a balance").remaining();
        if free == f64::from(SLOTS) {
            break;
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    assert_eq!(free, f64::from(SLOTS));
}
