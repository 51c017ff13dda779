//! On a private server.

use std::time::Duration;

use sqlx::AssertSqlSafe;

use crate::database::{Database, DatabaseArgs, Running};
use crate::operate::live::*;
use pg_limiter::queue::{Job, JobState, Queue};
use pg_limiter::{Item, Limiter, Limits};

const LIMITS: &str = r#"
    [limits]
    bucket = { kind = "token_bucket", rate = 60, period = "1h" }
    sharded = { kind = "token_bucket", rate = 100, period = "36525d", shards = 4 }
    window = { kind = "sliding_window", rate = 100, period = "1h", resolution = 6 }
    slots = { kind = "concurrency", capacity = 3, lease = "1h" }
    banned = { kind = "gate" }
    idle = { kind = "fixed_window", rate = 5, period = "1h" }
"#;

pub(crate) struct Fixture {
    pub(crate) running: Running,
    pub(crate) limiter: Limiter,
    pub(crate) live: Live,
}

pub(crate) async fn fixture(limits: &str) -> Fixture {
    let args = DatabaseArgs { database_url: None, schema: "rate_limit".to_owned() };
    let running = Database::new(args).unwrap().start(false).await.unwrap();
    let limits = Limits::from_toml(limits).unwrap();
    let limiter = running.limiter(limits.clone(), None).await.unwrap();
    let live = Live::open(&running, Some(limits)).await.unwrap();
    Fixture { running, limiter, live }
}

async fn take(limiter: &Limiter, item: Item) {
    limiter.limit(item).await.unwrap().enforce().unwrap();
}

fn find<'a>(snapshot: &'a Snapshot, name: &str) -> &'a LimitView {
    snapshot.limits.iter().find(|limit| limit.name == name).unwrap()
}

/// A definition that changes shows in the next sample.
#[tokio::test(flavor = "multi_thread")]
async fn stored_limits_are_followed() {
    let Fixture { running, limiter, .. } = fixture(LIMITS).await;
    let live = Live::open(&running, None).await.unwrap();
    take(&limiter, ("bucket", "u1").into()).await;
    let shown = async || {
        let snapshot = live.sample().await.snapshot;
        (find(&snapshot, "bucket").limit.clone(), snapshot.unused.len())
    };
    assert_eq!(shown().await, (None, 0));
    for rate in [60, 50] {
        let define = format!("SELECT rate_limit.define('bucket', 'token_bucket', rate => {rate}, period => '1 hour')");
        sqlx::query(AssertSqlSafe(define)).execute(limiter.pool()).await.unwrap();
        assert_eq!(shown().await, (Some(format!("token_bucket, {rate} per 1h")), 0));
    }
    let other = "SELECT rate_limit.define('other', kind => 'gate'), rate_limit.undefine('bucket')";
    sqlx::query(other).execute(limiter.pool()).await.unwrap();
    assert_eq!(shown().await, (None, 1));
}

#[tokio::test(flavor = "multi_thread")]
async fn limits_keys_and_queues_of_a_small_table_are_read_exactly() {
    let Fixture { running: _running, limiter, live, .. } = fixture(LIMITS).await;
    assert!(live.sample().await.error.is_none());
    assert!(live.seen().snapshot.limits.is_empty() && live.seen().snapshot.unused.len() == 6);
    take(&limiter, Item::new("bucket", "u1").count(50)).await;
    take(&limiter, ("bucket", "u2").into()).await;
    take(&limiter, Item::new("window", "u1").count(7)).await;
    for _ in 0..20 {
        take(&limiter, ("sharded", "u1").into()).await;
    }
    let lease = limiter.acquire(Item::new("slots", "u1").count(2)).await.unwrap().into_lease().unwrap();
    limiter.block(("banned", "u1"), Duration::from_secs(3600)).await.unwrap();
    let seen = live.sample().await;
    assert_eq!((seen.error, &seen.snapshot.note), (None, &None));
    let snapshot = seen.snapshot;
    assert_eq!(snapshot.unused.iter().map(|(name, _)| name.as_str()).collect::<Vec<_>>(), ["idle"]);
    let bucket = find(&snapshot, "bucket");
    assert_eq!((bucket.keys, bucket.taken_how), (Counted::exact(2), How::Exact));
    let key = |keys: &[KeyView]| keys.iter().map(|key| key.bucket.key.clone()).collect::<Vec<_>>();
    assert_eq!([key(&bucket.emptiest), key(&bucket.busiest)], [["u1", "u2"], ["u1", "u2"]]);
    let left = bucket.emptiest[0].balance.unwrap();
    assert!((10.0..11.0).contains(&left), "{left}");
    assert_eq!(find(&snapshot, "sharded").shards, 4);
    assert_eq!(find(&snapshot, "slots").emptiest[0].bucket.leases.len(), 1);
    assert_eq!(find(&snapshot, "banned").emptiest[0].bucket.meaning, Meaning::Blocked);
    assert_eq!(snapshot.keys("", "u2").len(), 1);

    let (now, all) = live.key("u1", None).await.unwrap();
    let names: Vec<&str> = all.iter().map(|bucket| &*bucket.bucket.name).collect();
    assert_eq!(names, ["banned", "bucket", "sharded", "slots", "window"]);
    let balance = all[1].balance.as_ref().unwrap();
    assert!(balance.capacity == 60.0 && balance.curve.last().unwrap().1 == 60.0 && balance.wait.is_none());
    assert!(all[0].bucket.full_at > now && all[4].bucket.window.as_ref().unwrap().1.iter().sum::<f64>() == 7.0);
    assert_eq!(live.keys_like("u", 5).await.unwrap().len(), 6);
    assert!(live.keys_like("v", 5).await.unwrap().is_empty());
    lease.release().await.unwrap();

    assert!(live.queues().await.unwrap().is_empty());
    let queue = Queue::new(&limiter, "mail").unwrap();
    for group in ["a", "b", "b"] {
        queue.enqueue(Job::new(("bucket", group), &"hello").unwrap()).await.unwrap().enforce().unwrap();
    }
    let queues = live.queues().await.unwrap();
    assert_eq!((queues.len(), queues[0].jobs[0].clone()), (1, ("scheduled".to_owned(), Counted::exact(3))));
    let groups = live.groups("mail", None).await.unwrap();
    assert_eq!((groups.len(), groups[1].scheduled), (2, Counted::exact(2)));
    assert!(groups[0].next_start.is_some() && live.groups("mail", Some("a")).await.unwrap().len() == 1);
    let jobs = live.jobs("mail", JobState::Scheduled, 1, 10).await.unwrap();
    assert_eq!(jobs.len(), 2);
    for state in JobState::ALL {
        live.jobs("mail", *state, 1, 10).await.unwrap();
    }
    let job = live.job(jobs[0].id).await.unwrap().unwrap();
    assert_eq!((job.payload.as_deref(), job.reserved.len()), (Some("\"hello\""), 1));
    assert!(live.job(-1).await.unwrap().is_none());

    let health = live.health().await.unwrap();
    assert!(health.findings.iter().any(|(check, _)| *check == "idle rows"));
    assert!(health.tables.iter().any(|table| table.name == "rate_limits" && table.bytes > 0));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_large_table_is_never_scanned() {
    let Fixture { running: _running, limiter, live } = fixture(LIMITS).await;
    let fill = "INSERT INTO rate_limit.rate_limits (name, key, value, ts, idle_at) \
                SELECT CASE WHEN n % 4 = 0 THEN 'bucket' ELSE 'other' END, 'k' || n, 5, now.t, now.t + 3300000000 \
                FROM generate_series(1, 300000) AS n, (SELECT (date_part('epoch', now()) * 1e6)::bigint AS t) AS now; \
                ANALYZE rate_limit.rate_limits; SELECT pg_stat_reset()";
    sqlx::raw_sql(AssertSqlSafe(fill)).execute(limiter.pool()).await.unwrap();
    take(&limiter, Item::new("bucket", "hot").count(50)).await;
    live.watch_key("bucket", "hot").await;
    for _ in 0..4 {
        take(&limiter, ("bucket", "hot").into()).await;
        let seen = live.sample().await;
        assert_eq!((seen.error, &seen.snapshot.note), (None, &None));
    }
    let snapshot = live.seen().snapshot;
    let coverage = snapshot.coverage;
    assert!(matches!(coverage, Coverage::Sampled { pages: 1..=256, of_pages: 1000.., .. }), "{coverage:?}");
    let bucket = find(&snapshot, "bucket");
    // A sample of pages: within a quarter of the 75,001 keys.
    assert_eq!(bucket.keys.how, How::Estimated);
    assert!((56_000..94_000).contains(&bucket.keys.number), "{:?}", bucket.keys);
    assert_eq!(bucket.busiest[0].bucket.key, "hot");
    // No other key was used.
    assert_eq!(bucket.per_second, bucket.busiest[0].per_second);
    assert!(bucket.per_second > 0.0);
    assert_eq!(bucket.emptiest.first().map(|key| key.balance), Some(Some(bucket.emptiest[0].balance.unwrap())));
    live.key("hot", None).await.unwrap();
    live.keys_like("k1", 5).await.unwrap();
    live.close().await;
    // A session reports its statistics when it ends.
    let scans = "SELECT coalesce(idx_scan, 0), coalesce(seq_tup_read, 0) FROM pg_stat_user_tables WHERE relname = 'rate_limits'";
    let (mut by_index, mut by_scan) = (0, 0);
    while by_index == 0 {
        tokio::time::sleep(Duration::from_millis(20)).await;
        (by_index, by_scan) = sqlx::query_as::<_, (i64, i64)>(scans).fetch_one(limiter.pool()).await.unwrap();
    }
    // The rows of four samples are fewer than those of one scan.
    assert!(by_scan < 300_000, "{by_scan}");
}
