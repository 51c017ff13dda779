//! When jobs start: the ticket of a scheduled job, and a trigger that records each start in the transaction that claims.

use std::time::{Duration, SystemTime};

use pg_limiter::queue::{EnqueueOutcome, Enqueued, Estimate, EstimateOutcome, Ticket};
use pg_limiter::sqlx::{self, PgPool, Row};

pub fn scheduled(enqueued: &Enqueued) -> Ticket {
    match enqueued.outcome() {
        EnqueueOutcome::Scheduled(ticket) => ticket,
        other => panic!("{other:?}"),
    }
}

/// When the job would run, and the time until then.
pub fn estimated(estimate: &Estimate) -> (SystemTime, Duration) {
    match estimate.outcome {
        EstimateOutcome::Scheduled { run_at, wait } => (run_at, wait),
        other => panic!("{other:?}"),
    }
}

#[derive(Clone, Debug)]
pub struct Start {
    pub job: i64,
    pub key: String,
    /// In microseconds.
    pub at: i64,
    pub run_at: i64,
    pub count: f64,
    /// The number of this start among those of the job.
    pub nth: i32,
}

pub async fn record(pool: &PgPool) {
    let sql = "
        CREATE TABLE starts (n bigserial, job bigint, key text, at bigint, run_at bigint, count double precision, nth integer);
        CREATE FUNCTION note_start() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER SET search_path = public AS $$
        BEGIN
          INSERT INTO starts (job, key, at, run_at, count, nth)
          VALUES (NEW.id, NEW.key, NEW.started_at, NEW.run_at, NEW.counts[1], NEW.starts);
          RETURN NULL;
        END $$;
        CREATE TRIGGER note_start AFTER UPDATE ON rate_limit.jobs FOR EACH ROW
          WHEN (NEW.state = 'running' AND OLD.state <> 'running') EXECUTE FUNCTION note_start();
        CREATE TABLE paid (n bigserial, key text, value double precision, ts bigint, began bigint);
        CREATE FUNCTION note_payment() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER SET search_path = public AS $$
        BEGIN
          INSERT INTO paid (key, value, ts, began) VALUES (NEW.key, NEW.value, NEW.ts, 1000000 * extract(epoch FROM now()));
          RETURN NULL;
        END $$;
        CREATE TRIGGER note_payment AFTER INSERT OR UPDATE ON rate_limit.rate_limits FOR EACH ROW
          WHEN (NEW.name LIKE '%/started') EXECUTE FUNCTION note_payment();";
    sqlx::raw_sql(sql).execute(pool).await.expect("a trigger");
}

/// All starts, in order of time.
pub async fn recorded(pool: &PgPool) -> Vec<Start> {
    let sql = "SELECT job, key, at, run_at, count, nth FROM starts ORDER BY at, n";
    let rows = sqlx::query(sql).fetch_all(pool).await.expect("starts");
    let start = |row: &sqlx::postgres::PgRow| Start {
        job: row.get(0),
        key: row.get(1),
        at: row.get(2),
        run_at: row.get(3),
        count: row.get(4),
        nth: row.get(5),
    };
    rows.iter().map(start).collect()
}

/// Asserts that the jobs of a key started in the order in which they were enqueued. (Starts at the same moment have no order.)
pub fn assert_in_order(starts: &[Start], key: &str) {
    let mut of_key: Vec<&Start> = starts.iter().filter(|start| start.key == key).collect();
    of_key.sort_by_key(|start| (start.job, start.nth));
    for pair in of_key.windows(2) {
        assert!(pair[0].at <= pair[1].at, "{:?} started after {:?}", pair[0], pair[1]);
    }
}

/// Asserts that no job started early, and that the starts of each group keep to the limit, apart from the moment between
/// taking the tokens and recording the time.
pub fn assert_times(starts: &[Start], rate: f64, period: Duration, capacity: f64) {
    for start in starts {
        assert!(start.at >= start.run_at, "{start:?} is early");
    }
    let rate = rate / period.as_micros() as f64;
    for key in keys(starts) {
        let of_key: Vec<&Start> = starts.iter().filter(|start| start.key == key).collect();
        for first in 0..of_key.len() {
            let mut taken = 0.0;
            for last in &of_key[first..] {
                taken += last.count;
                let granted = capacity + rate * ((last.at - of_key[first].at) as f64 + 500_000.0);
                assert!(taken <= granted + 1e-6, "{key}: {taken} taken, {granted} are granted: {of_key:#?}");
            }
        }
    }
}

/// Asserts also that each start took its tokens from a bucket of this limit, which never had too few. (For a job larger than
/// the capacity, the bucket may owe at most `owed`.)
pub async fn assert_within(pool: &PgPool, starts: &[Start], rate: f64, period: Duration, capacity: f64, owed: f64) {
    assert_times(starts, rate, period, capacity);
    let rate = rate / period.as_micros() as f64;
    for key in keys(starts) {
        let rows =
            sqlx::query("SELECT value, ts, began FROM paid WHERE key = $1 ORDER BY n").bind(key).fetch_all(pool).await;
        let (mut balance, mut ts, mut paid) = (capacity, None, 0.0);
        for row in rows.expect("payments") {
            let (value, at, began): (f64, i64, i64) = (row.get(0), row.get(1), row.get(2));
            assert!(value >= -owed - 1e-6, "{key}: the bucket holds {value}");
            if ts.is_none() && at == 0 {
                continue; // A placeholder row that was inserted to be locked.
            }
            let before = ts.unwrap_or(began.min(at));
            assert!(at >= before, "{key}: the bucket went back in time");
            // A claim takes the tokens of several jobs in one write, each at a time after the claim began. A bucket that is full
            // at the first of these times refills until the last one.
            let first = began.clamp(before, at);
            let granted = (balance + rate * (first - before) as f64).min(capacity) + rate * (at - first) as f64;
            paid += granted - value;
            (balance, ts) = (value, Some(at));
        }
        let started: f64 = starts.iter().filter(|start| start.key == key).map(|start| start.count).sum();
        assert!(paid >= started - 1e-3, "{key}: {started} tokens were started, {paid} paid");
    }
}

fn keys(starts: &[Start]) -> Vec<&str> {
    let mut keys: Vec<&str> = starts.iter().map(|start| start.key.as_str()).collect();
    keys.sort_unstable();
    keys.dedup();
    keys
}
