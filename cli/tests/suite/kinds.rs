//! The worked examples of calendar windows, concurrency limits and headrooms, replayed.

use serde_json::Value;

use crate::binary::{files, run};
use crate::support::Database;

#[tokio::test(flavor = "multi_thread")]
async fn replayed_calls_get_the_worked_answers() {
    let database = Database::empty().await;
    let mut compared = 0;
    for line in include_str!("../../../tests/data/kinds.jsonl").lines() {
        let case: Value = serde_json::from_str(line).expect("an example");
        let events = case["events"].as_array().expect("events");
        // Replay decides in the order of time. The answers of this example are those in the order of its lines.
        if case["name"] == "calendar_46" {
            continue;
        }
        let lines: Vec<String> = events.iter().map(Value::to_string).collect();
        let (_dir, path) = files(&[("limits.toml", case["limits"].as_str().expect("limits"))]);
        let replay = ["replay", "--limits", &path("limits.toml"), "--events", "-", "--json"];
        let replayed = run(Some(&database.url), &replay, &lines.join("\n"));
        assert_eq!((replayed.code, replayed.stderr.as_str()), (Some(0), ""), "{}", case["name"]);
        let answers: Vec<Value> =
            replayed.stdout.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect();
        let expected = case["expect"].as_array().expect("answers");
        assert_eq!(answers.len(), expected.len());
        for (nth, (answer, expected)) in answers.iter().zip(expected).enumerate() {
            let place = format!("{} event {nth}: {answer}, expected {expected}", case["name"]);
            assert_eq!((&answer["ok"], &answer["error"]), (&expected["ok"], &expected["error"]), "{place}");
            if !expected["denied_by"].is_null() {
                assert_eq!(answer["denied_by"], expected["denied_by"], "{place}");
            }
            match (answer["retry_after_ms"].as_f64(), expected["retry_after_ms"].as_f64()) {
                (None, None) => {}
                (Some(wait), Some(expected)) if (wait - expected).abs() <= 0.002 => {}
                _ => panic!("{place}"),
            }
            compared += 1;
        }
    }
    assert_eq!(compared, 2_101);
}
