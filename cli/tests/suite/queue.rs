//! `pg-limiter queue` lists the queues and jobs, requeues and cancels jobs.

use std::time::Duration;

use pg_limiter::queue::{Job, JobState, Queue};
use pg_limiter::sqlx;
use pg_limiter::{Item, Limits};
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::binary::{Run, files, run};
use crate::support::Database;
use crate::support::gate::limiter;
use crate::support::scheduled;
use crate::tool::ends_well_if_nobody_reads;

/// `slow` allows two tokens at once, and then one each century.
const LIMITS: &str = r#"
    [limits.slow]
    kind = "token_bucket"
    rate = 1
    period = "36525d"
    capacity = 2
    [limits.fast]
    kind = "token_bucket"
    rate = 1000
    period = "1s"
"#;

pub struct QueueFixture {
    pub database: Database,
    pub limits: String,
    _dir: TempDir,
}

impl QueueFixture {
    pub async fn new() -> Self {
        let (_dir, path) = files(&[("limits.toml", LIMITS)]);
        Self { database: Database::migrated().await, limits: path("limits.toml"), _dir }
    }

    pub fn queue(&self, name: &str) -> Queue {
        let limits = Limits::from_toml(LIMITS).expect("limits");
        Queue::new(&limiter(&self.database.pool, limits, |_| {}), name).expect("a queue")
    }

    pub async fn enqueue(&self, queue: &str, limit: &str, group: &str) -> i64 {
        let job = Job::new((limit, group), &"hello").expect("a job");
        scheduled(&self.queue(queue).enqueue(job).await.expect("an answer")).id
    }

    pub async fn change(&self, id: i64, columns: &str) {
        self.database.execute(&format!("UPDATE rate_limit.jobs SET {columns} WHERE id = {id}")).await;
    }

    pub async fn state(&self, id: i64) -> JobState {
        self.queue("q").job(id).await.expect("an answer").expect("a job").state
    }

    pub async fn slow(&self, key: &str) -> f64 {
        self.queue("q").limiter().peek(("slow", key)).await.expect("a balance").remaining()
    }

    /// The time as the tool prints it, to the millisecond. It is computed from whole milliseconds: a product with an interval
    /// is a double, which cannot represent every microsecond from the year 2255 on.
    async fn run_at(&self, id: i64) -> String {
        let sql = "SELECT to_char('epoch'::timestamp + (run_at / 1000) * interval '1 millisecond', \
                   'YYYY-MM-DD\"T\"HH24:MI:SS.MS\"Z\"') FROM rate_limit.jobs WHERE id = $1";
        sqlx::query_scalar(sql).bind(id).fetch_one(&self.database.pool).await.expect("a time")
    }

    pub fn tool(&self, args: &str) -> Run {
        let args: Vec<&str> = ["queue"].into_iter().chain(args.split(' ')).collect();
        run(Some(&self.database.url), &args, "")
    }

    pub fn with_limits(&self, args: &str) -> Run {
        self.tool(&format!("{args} --limits {}", self.limits))
    }
}

fn lines(run: &Run) -> Vec<Value> {
    run.stdout.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect()
}

/// 3 days and 1.5 hours, and 1 day and 2.5 hours: the half hour allows for the duration of the test.
const AGO: &str = "enqueued_at = enqueued_at - 264600000000, run_at = run_at - 95400000000";

#[tokio::test(flavor = "multi_thread")]
async fn groups_are_listed_with_job_counts() {
    let fixture = QueueFixture::new().await;
    for (nth, state) in JobState::ALL.iter().enumerate() {
        for _ in 0..=nth {
            let id = fixture.enqueue("q", "fast", "a").await;
            fixture.change(id, &format!("state = '{state}', {AGO}")).await;
        }
    }
    let strange = fixture.enqueue("q", "fast", "b\u{1b}[31m\n").await;
    fixture.change(strange, "state = 'dead'").await;
    let global = Job::new(Item::global("fast"), &1).expect("a job").run_at(std::time::SystemTime::now() + DAY);
    let global = scheduled(&fixture.queue("r").enqueue(global).await.expect("an answer")).id;
    fixture.change(global, "enqueued_at = enqueued_at - 264600000000").await;

    let head =
        "QUEUE  GROUP          SCHEDULED  AVAILABLE  RUNNING  DONE  DEAD  CANCELLED  OLDEST  OVERDUE  WAITING UNTIL";
    let a =
        "q      a                      1          2        3     4     5          6   3d 1h    1d 2h              -";
    let b =
        "q      b\\u{1b}[31m\\n          0          0        0     0     1          0       -        -              -";
    let r =
        "r      -                      1          0        0     0     0          0   3d 1h        -              -";
    fixture.tool("ls").says(0, &[head, a, b, r].join("\n"));
    fixture.tool("ls q").says(0, &[head, a, b].join("\n"));
    let one = fixture.tool("ls --limit 1");
    assert_eq!((one.code, one.stdout.lines().count()), (Some(0), 2), "{}", one.stdout);
    assert!(one.stderr.contains("more groups") && one.stderr.contains("--limit"), "{}", one.stderr);

    let all = lines(&fixture.tool("ls --json"));
    assert_eq!(all.len(), 3);
    let mut a = all[0].clone();
    for (field, least) in [("oldest_ms", 264_600_000.0), ("overdue_ms", 95_400_000.0)] {
        let length = a[field].take().as_f64().expect("a number");
        assert!((least..least + 3_600_000.0).contains(&length), "{field}: {length}");
    }
    let expected = json!({
        "queue": "q", "group": "a", "scheduled": 1, "available": 2, "running": 3, "done": 4, "dead": 5, "cancelled": 6,
        "oldest_ms": null, "overdue_ms": null, "waiting_until": null, "blocked": 0,
        "paused": false, "draining": false,
    });
    assert_eq!(a, expected);
    assert_eq!((&all[1]["group"], &all[1]["oldest_ms"]), (&"b\u{1b}[31m\n".into(), &Value::Null));
    assert_eq!((&all[2]["queue"], &all[2]["overdue_ms"]), (&"r".into(), &Value::Null));
}

const DAY: Duration = Duration::from_secs(86_400);

/// 2026-01-01 00:00:00.123456 UTC.
const NEW_YEAR: i64 = 1_767_225_600_123_456;

#[tokio::test(flavor = "multi_thread")]
async fn jobs_are_listed_by_state_and_group() {
    let fixture = QueueFixture::new().await;
    let mut ids = Vec::new();
    for (nth, (queue, group)) in [("q", "a"), ("q", "b"), ("q", "a"), ("r", "a")].into_iter().enumerate() {
        let id = fixture.enqueue(queue, "fast", group).await;
        fixture.change(id, &format!("run_at = {NEW_YEAR} - {nth} * 1000000")).await;
        ids.push(id);
    }
    let error = format!("no luck\n\u{1b}]0;owned\u{7}{}", "x".repeat(100));
    let sql = "UPDATE rate_limit.jobs SET state = 'dead', failures = 10, last_error = $1 WHERE id = $2";
    sqlx::query(sql).bind(&error).bind(ids[1]).execute(&fixture.database.pool).await.expect("an error");
    assert_eq!(ids, [1, 2, 3, 4]);

    let head = "ID  QUEUE  GROUP  STATE      RUN AT                    FAILURES  LAST ERROR";
    let q1 = " 1  q      a      scheduled  2026-01-01T00:00:00.123Z      0/10";
    let dead = format!(
        " 2  q      b      dead       2025-12-31T23:59:59.123Z     10/10  no luck\\n\\u{{1b}}]0;owned\\u{{7}}{}…",
        "x".repeat(51)
    );
    let q3 = " 3  q      a      scheduled  2025-12-31T23:59:58.123Z      0/10";
    let r4 = " 4  r      a      scheduled  2025-12-31T23:59:57.123Z      0/10";
    let table = |rows: &[&str]| [&[head], rows].concat().join("\n");
    fixture.tool("ls --jobs").says(0, &table(&[r4, q3, &dead, q1]));
    fixture.tool("ls q --jobs").says(0, &table(&[q3, &dead, q1]));
    fixture.tool("ls --group a").says(0, &table(&[r4, q3, q1]));
    fixture.tool("ls q --state scheduled --group a").says(0, &table(&[q3, q1]));
    let narrow = fixture.tool("ls --state dead");
    assert_eq!(narrow.stdout.lines().nth(1).map(|line| line.ends_with('…')), Some(true), "{}", narrow.stdout);
    for none in ["ls --state done", "ls q --state cancelled", "ls r --group b"] {
        fixture.tool(none).says(0, "no jobs");
        fixture.tool(&format!("{none} --json")).says(0, "");
    }
    let two = fixture.tool("ls --jobs --limit 2");
    two.says(0, &table(&[r4, q3]));
    assert!(two.stderr.contains("more jobs") && two.stderr.contains("--limit"), "{}", two.stderr);
    assert_eq!(fixture.tool("ls --jobs --limit 4").stderr, "");

    let listed = fixture.tool("ls q --jobs --json");
    assert!(!listed.stdout.contains('\u{1b}'), "{}", listed.stdout);
    let listed = lines(&listed);
    assert_eq!(listed.iter().map(|job| &job["id"]).collect::<Vec<_>>(), [3, 2, 1]);
    assert_eq!((&listed[1]["state"], &listed[1]["last_error"]), (&"dead".into(), &error.into()));
    assert_eq!((&listed[1]["failures"], &listed[1]["max_attempts"]), (&10.into(), &10.into()));
    assert_eq!(listed[2]["run_at"], "2026-01-01T00:00:00.123456Z");
}

#[tokio::test(flavor = "multi_thread")]
async fn every_detail_of_a_job_is_shown() {
    let fixture = QueueFixture::new().await;
    let payload = json!({"text": "\u{9b}31m\u{1b}", "big": 12_345_678_901_234_567_890_u64});
    let job = Job::new([Item::new("slow", "o\u{1b}rg").count(1.5), Item::global("fast")], &payload)
        .expect("a job")
        .unique_id("once")
        .priority(-7)
        .max_attempts(3);
    let id = scheduled(&fixture.queue("q").enqueue(job).await.expect("an answer")).id;
    let times: Vec<String> = ["run_at", "enqueued_at", "started_at", "finished_at"]
        .iter()
        .enumerate()
        .map(|(nth, column)| format!("{column} = {NEW_YEAR} + {nth} * 1000000"))
        .collect();
    let rest = "state = 'dead', worker = 'host-1', failures = 3, waits = 2, last_error = E'no\\tluck', used_counts = '{0.5,NULL}'";
    fixture.change(id, &format!("{}, {rest}", times.join(", "))).await;

    let expected = [
        "id           1",
        "queue        q",
        "group        o\\u{1b}rg",
        "state        dead",
        "priority     -7",
        "run at       2026-01-01T00:00:00.123Z",
        "enqueued at  2026-01-01T00:00:01.123Z",
        "started at   2026-01-01T00:00:02.123Z",
        "finished at  2026-01-01T00:00:03.123Z",
        "worker       host-1",
        "failures     3 of at most 3",
        "waits        2",
        "last error   no\\tluck",
        "unique id    once",
        "reserved     1.5 slow for o\\u{1b}rg, used 0.5",
        "reserved     1 fast",
        "payload      {\"big\": 12345678901234567890, \"text\": \"\\u{9b}31m\\u001b\"}",
    ];
    fixture.tool("show 1").says(0, &expected.join("\n"));
    let shown = fixture.tool("show 1 --json");
    assert!(!shown.stdout.contains('\u{9b}'), "{}", shown.stdout);
    let expected = json!({
        "id": 1, "queue": "q", "group": "o\u{1b}rg", "state": "dead", "priority": -7,
        "run_at": "2026-01-01T00:00:00.123456Z", "enqueued_at": "2026-01-01T00:00:01.123456Z",
        "started_at": "2026-01-01T00:00:02.123456Z", "finished_at": "2026-01-01T00:00:03.123456Z",
        "worker": "host-1", "failures": 3, "max_attempts": 3, "waits": 2, "waiting_until": null, "blocked_by": null, "awaits_turn": false, "last_error": "no\tluck", "unique_id": "once",
        "reserved": [
            {"limit": "slow", "key": "o\u{1b}rg", "count": 1.5, "used": 0.5},
            {"limit": "fast", "key": "", "count": 1, "used": null},
        ],
        "slots": [],
        "payload": payload,
    });
    assert_eq!(lines(&shown), [expected]);

    let plain = fixture.enqueue("q", "fast", "g").await;
    let shown = fixture.tool(&format!("show {plain}"));
    for line in ["started at   -", "worker       -", "last error   -", "unique id    -", "payload      \"hello\""] {
        assert!(shown.stdout.lines().any(|shown| shown == line), "no {line:?} in: {}", shown.stdout);
    }
    for unknown in ["show 99", "show 99 --json"] {
        fixture.tool(unknown).refuses(2, &["there is no job 99"]);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn dead_and_cancelled_jobs_are_requeued_and_others_are_not() {
    let fixture = QueueFixture::new().await;
    let mut ids = Vec::new();
    for state in ["dead", "running", "cancelled"] {
        let id = fixture.enqueue("q", "slow", "g").await;
        fixture.change(id, &format!("state = '{state}', failures = 2, run_at = {NEW_YEAR}")).await;
        ids.push(id);
    }
    let requeued = fixture.with_limits(&format!("requeue {} {} 99 {}", ids[0], ids[1], ids[2]));
    let expected = [(1, fixture.run_at(ids[0]).await), (3, fixture.run_at(ids[2]).await)]
        .map(|(id, at)| format!("job {id} runs at {at}"));
    requeued.says(2, &expected.join("\n"));
    assert!(!requeued.stdout.contains("2026-01-01"), "{}", requeued.stdout);
    for words in ["job 2 is running; only dead and cancelled", "there is no job 99"] {
        assert!(requeued.stderr.contains(words), "{}", requeued.stderr);
    }
    assert_eq!(requeued.stderr.lines().count(), 2, "{}", requeued.stderr);
    // Three of two tokens were taken, and now two more.
    let left = fixture.slow("g").await;
    assert!((left + 3.0).abs() < 1e-6, "{left}");
    for (id, state, failures) in [(1, JobState::Scheduled, 0), (2, JobState::Running, 2), (3, JobState::Scheduled, 0)] {
        let job = fixture.queue("q").job(id).await.expect("an answer").expect("a job");
        assert_eq!((job.state, job.failures), (state, failures), "{id}");
    }

    let again = fixture.with_limits("requeue 1 99 --json");
    assert_eq!(again.code, Some(2));
    let printed = lines(&again);
    assert_eq!(
        (&printed[0]["ok"], &printed[0]["id"], &printed[0]["state"]),
        (&false.into(), &1.into(), &"scheduled".into())
    );
    assert_eq!((&printed[1]["ok"], &printed[1]["id"], &printed[1]["state"]), (&false.into(), &99.into(), &Value::Null));
    assert!(printed.iter().all(|line| line["message"].is_string()), "{printed:?}");
    fixture.change(1, "state = 'dead'").await;
    let requeued = fixture.with_limits("requeue 1 --json");
    assert_eq!((requeued.code, requeued.stderr.as_str()), (Some(0), ""));
    let printed = lines(&requeued);
    assert_eq!((&printed[0]["ok"], &printed[0]["id"]), (&true.into(), &1.into()));
    let at = printed[0]["run_at"].as_str().expect("a time");
    assert_eq!(at[..23], fixture.run_at(1).await[..23]);
}

#[tokio::test(flavor = "multi_thread")]
async fn all_dead_jobs_of_a_queue_are_requeued() {
    let fixture = QueueFixture::new().await;
    let mut ids = Vec::new();
    for (queue, state) in [("q", "dead"), ("q", "cancelled"), ("q", "dead"), ("r\u{7}", "dead")] {
        let id = fixture.enqueue(queue, "fast", "g").await;
        fixture.change(id, &format!("state = '{state}'")).await;
        ids.push(id);
    }
    let requeued = fixture.with_limits("requeue --dead q");
    let expected = format!("job 1 runs at {}\njob 3 runs at {}", fixture.run_at(1).await, fixture.run_at(3).await);
    requeued.says(0, &expected);
    assert_eq!(fixture.state(2).await, JobState::Cancelled);
    let other = fixture.queue("r\u{7}").job(ids[3]).await.expect("an answer").expect("a job");
    assert_eq!(other.state, JobState::Dead);
    fixture.with_limits("requeue --dead q").says(0, "no dead jobs in the queue \"q\"");
    fixture.with_limits("requeue --dead q --json").says(0, "");
    fixture.with_limits("requeue --dead none").refuses(2, &["there is no queue \"none\"; queues: \"q\", \"r\\u{7}\""]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_command_completes_if_its_output_is_closed_early() {
    let fixture = QueueFixture::new().await;
    for _ in 0..5 {
        let id = fixture.enqueue("q", "fast", "g").await;
        fixture.change(id, "state = 'dead'").await;
    }
    ends_well_if_nobody_reads(&fixture.database.url, &["queue", "requeue", "--dead", "q", "--limits", &fixture.limits]);
    assert!(fixture.queue("q").jobs(Some(JobState::Dead), 10).await.expect("jobs").is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn cancelled_jobs_give_their_tokens_back() {
    let fixture = QueueFixture::new().await;
    for _ in 0..4 {
        fixture.enqueue("q", "slow", "g").await;
    }
    fixture.change(1, "state = 'available'").await;
    fixture.change(2, "state = 'running'").await;
    let cancelled = fixture.with_limits("cancel 1 2 99 3");
    cancelled.says(2, "job 1 is cancelled\njob 3 is cancelled");
    for words in ["job 2 is running; only jobs that have not started", "there is no job 99"] {
        assert!(cancelled.stderr.contains(words), "{}", cancelled.stderr);
    }
    assert_eq!(cancelled.stderr.lines().count(), 2, "{}", cancelled.stderr);
    // Four of two tokens were taken, and two were given back.
    let left = fixture.slow("g").await;
    assert!(left.abs() < 1e-6, "{left}");
    for (id, state) in [(1, JobState::Cancelled), (2, JobState::Running), (3, JobState::Cancelled)] {
        assert_eq!(fixture.state(id).await, state, "{id}");
    }
    let printed = fixture.with_limits("cancel 4 1 --json");
    assert_eq!(printed.code, Some(2));
    let printed = lines(&printed);
    assert_eq!(printed[0], json!({"ok": true, "id": 4, "was": "scheduled"}));
    assert_eq!(
        (&printed[1]["ok"], &printed[1]["id"], &printed[1]["state"]),
        (&false.into(), &1.into(), &"cancelled".into())
    );
    let left = fixture.slow("g").await;
    assert!((left - 1.0).abs() < 1e-6, "{left}");
}

#[tokio::test(flavor = "multi_thread")]
async fn dead_jobs_are_discarded_and_others_are_not() {
    let fixture = QueueFixture::new().await;
    for (queue, state) in
        [("q", "dead"), ("q", "running"), ("r", "dead"), ("q", "dead"), ("q", "dead"), ("q", "cancelled")]
    {
        let id = fixture.enqueue(queue, "fast", "g").await;
        fixture.change(id, &format!("state = '{state}', finished_at = enqueued_at")).await;
    }
    let discarded = fixture.tool("discard 1 2 99 --queue q 3");
    discarded.says(2, "job 1 is discarded");
    for words in
        ["job 2 is running; only dead jobs can be discarded", "there is no job 99", "job 3 is in the queue \"r\""]
    {
        assert!(discarded.stderr.contains(words), "{}", discarded.stderr);
    }
    assert_eq!(discarded.stderr.lines().count(), 3, "{}", discarded.stderr);
    let printed = lines(&fixture.tool("discard 4 2 --json"));
    assert_eq!(printed[0], json!({"ok": true, "id": 4, "was": "dead"}));
    assert_eq!((&printed[1]["ok"], &printed[1]["state"]), (&false.into(), &"running".into()));
    fixture.tool("discard --queue q").says(0, "1 dead job discarded");
    fixture.tool("discard --queue q").says(0, "no dead jobs in the queue \"q\"");
    fixture.tool("discard --queue q --json").says(0, "{\"ok\": true, \"jobs\": 0}");
    fixture.tool("discard --queue none").refuses(2, &["there is no queue \"none\"; queues: \"q\", \"r\""]);
    let left = fixture.tool("ls --jobs --json");
    assert_eq!(lines(&left).iter().map(|job| job["id"].clone()).collect::<Vec<_>>(), [2, 3, 6]);
}

#[tokio::test(flavor = "multi_thread")]
async fn prune_deletes_jobs_that_have_been_dead_for_long() {
    let fixture = QueueFixture::new().await;
    for (queue, days) in [("q", 29), ("q", 31), ("r", 31), ("r", 40)] {
        let id = fixture.enqueue(queue, "slow", "g").await;
        fixture.change(id, &format!("state = 'dead', finished_at = enqueued_at - {days} * 86400000000")).await;
    }
    let done = fixture.enqueue("q", "slow", "g").await;
    fixture.change(done, &format!("state = 'done', finished_at = {NEW_YEAR}")).await;
    let prune = |args: &str| run(Some(&fixture.database.url), &args.split(' ').collect::<Vec<_>>(), "");
    prune("prune").says(0, "done, 0 rows removed");
    prune("prune --dead-older-than 35d").says(0, "done, 0 rows and 1 dead job removed");
    prune("prune --dead-older-than 30d --json").says(0, r#"{"ok": true, "rows": 0, "dead_jobs": 2}"#);
    for mistake in ["soon", "1month", "1M", "2years"] {
        let mistake = prune(&format!("prune --dead-older-than {mistake}"));
        assert!(mistake.code == Some(2) && mistake.stderr.contains("--dead-older-than"), "{}", mistake.stderr);
    }
    let left = fixture.tool("ls --jobs --json");
    assert_eq!(lines(&left).iter().map(|job| job["id"].clone()).collect::<Vec<_>>(), [1, 5]);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_end_of_a_wait_is_shown() {
    let fixture = QueueFixture::new().await;
    for _ in 0..2 {
        fixture.enqueue("q", "fast", "g").await;
    }
    // 2100-01-01 00:00:00.123456 UTC.
    fixture.change(1, "state = 'available', waits = 3").await;
    let held = "INSERT INTO rate_limit.groups (queue, key, held_until) VALUES ('q', 'g', 4102444800123456)";
    fixture.database.execute(held).await;
    let until = "waiting until 2100-01-01T00:00:00.123Z";
    for (id, state) in [(1, "available"), (2, "scheduled")] {
        let listed = fixture.tool("ls --jobs");
        let line = listed.stdout.lines().nth(id).expect("a line").to_owned();
        assert!(line.contains(&format!("{state}, {until}")), "{line}");
        let shown = fixture.tool(&format!("show {id}"));
        assert!(shown.stdout.contains(&format!("state        {state}, {until}\n")), "{}", shown.stdout);
        let shown = lines(&fixture.tool(&format!("show {id} --json")));
        assert_eq!(
            (&shown[0]["state"], &shown[0]["waiting_until"]),
            (&state.into(), &"2100-01-01T00:00:00.123456Z".into())
        );
    }
    assert!(fixture.tool("show 1").stdout.contains("waits        3\n"));
    let groups = fixture.tool("ls");
    assert!(
        groups.stdout.lines().nth(1).expect("a group").ends_with("  2100-01-01T00:00:00.123Z"),
        "{}",
        groups.stdout
    );
    assert_eq!(lines(&fixture.tool("ls --json"))[0]["waiting_until"], "2100-01-01T00:00:00.123456Z");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_job_with_unknown_limits_is_not_changed() {
    let fixture = QueueFixture::new().await;
    let dead = fixture.enqueue("q", "slow", "g").await;
    fixture.change(dead, "state = 'dead'").await;
    let job = Job::new(("slow", "g", 2), &1).expect("a job");
    let waits = scheduled(&fixture.queue("q").enqueue(job.clone()).await.expect("an answer")).id;
    let large = scheduled(&fixture.queue("q").enqueue(job).await.expect("an answer")).id;
    fixture.change(large, "state = 'dead'").await;
    let small = LIMITS.replace("capacity = 2", "capacity = 1\nmax_reserved = 0");
    let (_dir, path) = files(&[("other.toml", &LIMITS.replace("slow", "quick")), ("small.toml", &small)]);
    let other = path("other.toml");
    for args in [format!("requeue {dead}"), "requeue --dead q".to_owned(), format!("cancel {waits}")] {
        let refused = fixture.tool(&format!("{args} --limits {other}"));
        refused.says(2, "");
        assert!(refused.stderr.contains("its limit \"slow\" is not in the limits file"), "{}", refused.stderr);
    }
    fixture.tool(&format!("requeue {large} --limits {}", path("small.toml"))).refuses(2, &["the count 2", "at most 1"]);
    for (id, state) in [(dead, JobState::Dead), (waits, JobState::Scheduled), (large, JobState::Dead)] {
        assert_eq!(fixture.state(id).await, state, "{id}");
    }
    // Tokens that were reserved under a larger limit can still be given back.
    fixture
        .tool(&format!("cancel {waits} --limits {}", path("small.toml")))
        .says(0, &format!("job {waits} is cancelled"));
}

#[tokio::test(flavor = "multi_thread")]
async fn an_empty_database_has_no_jobs_and_no_queues() {
    let fixture = QueueFixture::new().await;
    for list in ["ls", "ls --jobs", "ls --state dead"] {
        fixture.tool(list).says(0, "no jobs");
        fixture.tool(&format!("{list} --json")).says(0, "");
    }
    for list in ["ls q", "ls q --json", "ls q --jobs", "ls q --group g --json"] {
        fixture.tool(list).refuses(2, &["there is no queue \"q\"; no queue has jobs"]);
    }
    fixture.with_limits("requeue --dead q").refuses(2, &["there is no queue \"q\"; no queue has jobs"]);
    fixture.tool("show 1").refuses(2, &["there is no job 1"]);
    fixture.enqueue("q\n", "fast", "g").await;
    fixture.enqueue("r", "fast", "g").await;
    fixture.enqueue("r", "fast", "h").await;
    for list in ["ls s", "ls s --state dead"] {
        fixture.tool(list).refuses(2, &["there is no queue \"s\"; queues: \"q\\n\", \"r\"\n"]);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn mistakes_and_failures_have_their_exit_codes() {
    let fixture = QueueFixture::new().await;
    for (args, words) in [
        ("ls --state asleep", "scheduled, available, running, done, dead, cancelled"),
        ("ls --limit 0", "--limit"),
        ("show", "<ID>"),
        ("show one", "one"),
        ("requeue 1", "there is no job 1"),
        ("cancel 1", "there is no job 1"),
        ("resume q", "there is no queue \"q\""),
        ("requeue 1 --group g", "--group"),
        ("requeue --group g", "--dead"),
        ("drain", "<QUEUE>"),
        ("resume q g", "there is no queue \"q\""),
        ("discard", "<ID>"),
        ("requeue --limits x", "<ID>"),
        ("cancel --limits x", "<ID>"),
        ("requeue 1 --dead q --limits x", "--dead"),
        ("requeue 1 --limits no/such.toml", "no/such.toml"),
        ("cancel 1 --limits no/such.toml", "no/such.toml"),
    ] {
        let mistake = fixture.tool(args);
        assert_eq!((mistake.code, mistake.stdout.as_str()), (Some(2), ""), "{args}: {}", mistake.stderr);
        assert!(mistake.stderr.contains(words), "{args}: {}", mistake.stderr);
    }
    assert_eq!(run(None, &["queue"], "").code, Some(2));
    let none = Database::empty().await;
    let limits = fixture.limits.as_str();
    let all: [&[&str]; 8] = [
        &["ls"],
        &["ls", "--jobs"],
        &["show", "1"],
        &["requeue", "1", "--limits", limits],
        &["requeue", "--dead", "q", "--limits", limits],
        &["cancel", "1", "--limits", limits],
        &["discard", "1"],
        &["discard", "--queue", "q"],
    ];
    let role = format!("queue_{}", std::process::id());
    let create = format!("DROP ROLE IF EXISTS {role}; CREATE ROLE {role}; GRANT USAGE ON SCHEMA rate_limit TO {role}");
    fixture.database.execute(&create).await;
    let url = &fixture.database.url;
    let as_role = format!("{url}{}options[role]={role}", if url.contains('?') { '&' } else { '?' });
    for args in all {
        let args = [&["queue"], args].concat();
        run(Some(&none.url), &args, "").refuses(3, &["\"rate_limit\"", "pg-limiter migrate"]);
        let elsewhere = [&args[..], &["--schema", "else"]].concat();
        run(Some(&none.url), &elsewhere, "").refuses(3, &["\"else\"", "pg-limiter migrate"]);
        // The first table that it reads.
        run(Some(&as_role), &args, "").refuses(3, &["permission denied", "table groups"]);
    }
    fixture.database.execute(&format!("DROP OWNED BY {role}; DROP ROLE {role}")).await;
}
