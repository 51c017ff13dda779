//! `pg-limiter queue` on jobs that do not run: dead, blocked, or in a group that waits.

use pg_limiter::queue::{Job, JobState};
use std::fs;

use serde_json::{Value, json};

use crate::binary::run;
use crate::queue::QueueFixture;
use crate::support::scheduled;

#[tokio::test(flavor = "multi_thread")]
async fn jobs_without_a_limits_file_use_the_stored_limits() {
    let fixture = QueueFixture::new().await;
    let (dead, waits) = (fixture.enqueue("q", "slow", "g").await, fixture.enqueue("q", "slow", "g").await);
    fixture.change(dead, "state = 'dead', finished_at = 1").await;
    for args in [format!("requeue {dead}"), format!("cancel {waits}")] {
        fixture.tool(&args).refuses(2, &["its limit \"slow\" is not in the limits file, nor stored in the database"]);
    }
    assert_eq!(run(Some(&fixture.database.url), &["limits", "apply", &fixture.limits], "").code, Some(0));
    let cancelled = fixture.tool(&format!("cancel {waits}"));
    assert_eq!(cancelled.code, Some(0), "{}", cancelled.stderr);
    let before = fixture.slow("g").await;
    let requeued = fixture.tool(&format!("requeue {dead}"));
    assert_eq!((requeued.code, fixture.state(dead).await), (Some(0), JobState::Scheduled), "{}", requeued.stderr);
    assert!((before - fixture.slow("g").await - 1.0).abs() < 1e-6, "it reserves again");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_job_whose_unique_id_is_taken_is_not_requeued() {
    let fixture = QueueFixture::new().await;
    let queue = fixture.queue("q");
    let job = || Job::new(("fast", "g"), &1).expect("a job").unique_id("once");
    let first = scheduled(&queue.enqueue(job()).await.expect("an answer")).id;
    fixture.change(first, "state = 'dead', finished_at = 1").await;
    let _second = scheduled(&queue.enqueue(job()).await.expect("an answer"));
    fixture.with_limits(&format!("requeue {first}")).refuses(2, &["a newer job has its unique id"]);
    fixture.with_limits("requeue --dead q").refuses(2, &["a newer job has its unique id"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn jobs_that_no_worker_can_start_are_shown() {
    let fixture = QueueFixture::new().await;
    let id = fixture.enqueue("q", "fast", "g").await;
    fixture.enqueue("q", "fast", "h").await;
    assert!(!fixture.tool("ls").stdout.contains("BLOCKED"));
    fixture.change(id, "blocked_by = 'fast/slots'").await;
    let why = "scheduled, no worker defines its limit \"fast\", or defines it as another kind";
    for args in ["ls --jobs", &format!("show {id}")] {
        assert!(fixture.tool(args).stdout.contains(why), "{args}");
    }
    let groups = fixture.tool("ls").stdout;
    let last: Vec<_> = groups.lines().filter_map(|line| line.split_whitespace().last()).collect();
    assert_eq!(last, ["BLOCKED", "1", "0"], "{groups}");
    let doctor = run(Some(&fixture.database.url), &["doctor"], "").stdout;
    assert!(doctor.contains("1 job cannot start: no worker defines its limit \"fast\""), "{doctor}");
}

#[tokio::test(flavor = "multi_thread")]
async fn resume_ends_the_wait_of_a_group() {
    let fixture = QueueFixture::new().await;
    fixture.enqueue("q", "fast", "g").await;
    let wait =
        "INSERT INTO rate_limit.groups (queue, key, has_line, held_until) VALUES ('q', 'g', true, 9000000000000000)";
    fixture.database.execute(wait).await;
    let resumed = fixture.tool("resume q g");
    assert_eq!((resumed.code, resumed.stdout.trim()), (Some(0), "the group \"g\" starts its jobs again"));
    assert_eq!(fixture.tool("resume q g").stdout.trim(), "the group \"g\" is not paused, and does not wait");
    let object: Value = serde_json::from_str(&fixture.tool("resume q h --json").stdout).expect("JSON");
    assert_eq!(object, json!({"ok": true, "queue": "q", "group": "h", "resumed": false}));
}

#[tokio::test(flavor = "multi_thread")]
async fn queues_and_groups_are_paused_resumed_and_drained() {
    let fixture = QueueFixture::new().await;
    fixture.enqueue("q", "fast", "g").await;
    fixture.enqueue("q", "fast", "h").await;
    assert!(!fixture.tool("ls").stdout.contains("HELD"));
    for (args, expected) in [
        ("pause q g", "the group \"g\" starts no job until it is resumed"),
        ("pause q g", "the group \"g\" was paused before"),
        ("drain q", "the queue \"q\" takes no new jobs until it is resumed; left in it: 2 jobs"),
    ] {
        let held = fixture.tool(args);
        assert_eq!((held.code, held.stdout.trim()), (Some(0), expected), "{args}: {}", held.stderr);
    }
    let held = |args: &str| {
        let groups = fixture.tool(args).stdout;
        groups.lines().map(|line| line.rsplit("  ").next().unwrap_or_default().trim().to_owned()).collect::<Vec<_>>()
    };
    assert_eq!(held("ls"), ["HELD", "paused, draining", "draining"]);
    let object: Value = serde_json::from_str(&fixture.tool("pause q --json").stdout).expect("JSON");
    assert_eq!(object, json!({"ok": true, "queue": "q", "group": null, "paused": true}));
    let doctor = run(Some(&fixture.database.url), &["doctor"], "").stdout;
    assert!(doctor.contains("paused, so that no job starts: q"), "{doctor}");
    assert_eq!(fixture.tool("resume q").stdout.trim(), "the queue \"q\" starts its jobs again");
    assert_eq!(held("ls"), ["HELD", "paused", "-"]);
    let doctor = run(Some(&fixture.database.url), &["doctor"], "").stdout;
    assert!(doctor.contains("paused groups, of which no job starts: 1"), "{doctor}");
    assert_eq!(fixture.tool("resume q").stdout.trim(), "the queue \"q\" is neither paused nor draining");
    // A queue can be paused before it has jobs.
    let empty = fixture.tool("pause later");
    assert_eq!(empty.code, Some(0));
    assert!(empty.stderr.contains("the queue \"later\" has no jobs"), "{}", empty.stderr);
    assert_eq!(fixture.tool("pause later").stdout.trim(), "the queue \"later\" was paused before");
    assert_eq!(fixture.tool("resume absent").code, Some(2), "there is no such queue");
    for (args, words) in [("ls later", "later  -"), ("ls", "later  -"), ("ls later", "  paused")] {
        assert!(fixture.tool(args).stdout.contains(words), "{args}: {}", fixture.tool(args).stdout);
    }
    assert_eq!(fixture.tool("ls later --jobs").stdout.trim(), "no jobs");
    fixture.tool("pause q nobody");
    assert!(fixture.tool("ls q").stdout.lines().any(|line| line.contains("nobody") && line.ends_with("paused")));
    let object: Value = serde_json::from_str(&fixture.tool("drain later --wait --json").stdout).expect("JSON");
    assert_eq!(object, json!({"ok": true, "queue": "later", "jobs": 0}));
}

/// As in SQL: such a job takes all slots that there are.
#[tokio::test(flavor = "multi_thread")]
async fn a_job_that_needs_more_slots_than_there_are_now_is_requeued() {
    let fixture = QueueFixture::new().await;
    let id = fixture.enqueue("q", "fast", "g").await;
    let slots = "state = 'dead', finished_at = 1, slot_names = '{few}', slot_keys = '{k}', slot_counts = '{9}'";
    fixture.change(id, slots).await;
    let file = format!(
        "{}[limits.few]\nkind = \"concurrency\"\ncapacity = 2\n",
        fs::read_to_string(&fixture.limits).expect("limits")
    );
    fs::write(&fixture.limits, file).expect("write");
    assert_eq!(
        fixture.with_limits("requeue --dead q --group nog").stdout.trim(),
        "no dead jobs in the group \"nog\" of the queue \"q\""
    );
    let requeued = fixture.with_limits("requeue --dead q");
    assert!(requeued.code == Some(0) && requeued.stdout.contains("runs at"), "{}", requeued.stderr);
}

#[tokio::test(flavor = "multi_thread")]
async fn doctor_reports_turns_that_no_worker_takes() {
    let fixture = QueueFixture::new().await;
    let id = fixture.enqueue("q", "fast", "g").await;
    fixture.change(id, "awaits_turn = true, run_at = run_at - 18000000000").await;
    let doctor = || run(Some(&fixture.database.url), &["doctor"], "").stdout;
    for (turn, is_late) in [("rate_limit._clock() + 1000000", false), ("rate_limit._clock() - 18000000000", true)] {
        let turn = format!(
            "INSERT INTO rate_limit.turns (queue, key, wanted_at) VALUES ('q', 'g', {turn})
             ON CONFLICT (queue, key) DO UPDATE SET wanted_at = excluded.wanted_at"
        );
        fixture.database.execute(&turn).await;
        let doctor = doctor();
        assert_eq!(doctor.contains("the most overdue job should have begun 5h"), is_late, "{doctor}");
    }
    fixture.database.execute("DELETE FROM rate_limit.jobs").await;
    assert_eq!(fixture.tool("pause q").code, Some(0));
    let doctor = doctor();
    assert!(
        doctor.contains("none: the queue is empty") && doctor.contains("paused, so that no job starts: q"),
        "{doctor}"
    );
}
