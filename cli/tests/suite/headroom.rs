//! `--leave`, and `leave` in recorded calls.

use serde_json::Value;

use crate::binary::{files, run};
use crate::support::Database;

#[tokio::test(flavor = "multi_thread")]
async fn limit_and_check_leave_a_headroom() {
    let database = Database::migrated().await;
    let tool = |args: &str| run(Some(&database.url), &args.split(' ').collect::<Vec<_>>(), "");
    let limit = "limit a k --rate 10 --period 36500d";
    tool(&format!("{limit} --count 4 --leave 6")).says(0, "allowed, 6 left");
    let denied = tool(&format!("{limit} --leave 5.5"));
    assert!(denied.code == Some(1) && denied.stdout.starts_with("denied, retry after 182"), "{}", denied.stdout);
    let checked = tool("check a k --rate 10 --period 36500d --leave 5.5 --json");
    assert!(checked.code == Some(1) && checked.stdout.starts_with(r#"{"ok": false, "#), "{}", checked.stdout);
    tool(&format!("{limit} --leave 5")).says(0, "allowed, 5 left");
    tool(&format!("{limit} --count 5")).says(0, "allowed, 0 left");
    // Without a database.
    let invalid = |args: &str, words: &[&str]| {
        let args = format!("limit a k --rate 10 --period 1d {args}");
        let url = Some("postgres://nobody@127.0.0.1:1/none");
        let refused = run(url, &args.split(' ').collect::<Vec<_>>(), "");
        assert_eq!((refused.code, refused.stdout.as_str()), (Some(2), ""), "{}", refused.stderr);
        for word in words {
            assert!(refused.stderr.contains(word), "no {word:?} in: {}", refused.stderr);
        }
    };
    invalid("--leave -1", &["the headroom -1 for the limit \"a\"", "from 0 to the capacity, 10"]);
    invalid("--leave 11", &["the headroom 11 for the limit \"a\"", "from 0 to the capacity, 10"]);
    invalid("--leave NaN", &["--leave", "not a finite number"]);
    invalid("--leave 5 --count 5.5", &["the count 5.5", "at most 5 and leaves 5", "or leave less"]);
    invalid("--leave 5 --reserve", &["--leave", "cannot be used with", "--reserve"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn simulated_calls_leave_a_headroom() {
    let database = Database::empty().await;
    let simulate =
        "simulate --rate 10 --period 10s --start 0s --traffic constant --calls 2/s --for 10s --leave 4 --json";
    let simulated = run(Some(&database.url), &simulate.split(' ').collect::<Vec<_>>(), "");
    assert_eq!((simulated.code, simulated.stderr.as_str()), (Some(0), ""));
    let admitted: Vec<(String, u64)> = simulated
        .stdout
        .lines()
        .map(|line| serde_json::from_str::<Value>(line).expect("JSON"))
        .map(|line| (line["limit"].as_str().expect("a name").to_owned(), line["admitted"].as_u64().expect("a number")))
        .collect();
    // 6 tokens are free at first. A token arrives each second in the bucket, and none in the windows before the end.
    let expected = [("token_bucket", 15), ("fixed_window", 6), ("sliding_window", 6)];
    assert_eq!(admitted, expected.map(|(name, calls)| (name.to_owned(), calls)));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_recorded_headroom_that_is_invalid_has_its_own_error() {
    let database = Database::empty().await;
    let (_dir, path) = files(&[("limits.toml", "[limits.a]\nkind = \"sliding_window\"\nrate = 10\nperiod = \"1m\"\n")]);
    let events = r#"{"at": 0, "all": [{"limit": "a", "count": 2, "leave": 7}, {"limit": "a", "leave": 1}]}
{"at": 1, "op": "check", "limit": "a", "leave": 6.5}
{"at": 2, "limit": "a", "leave": 11}
{"at": 3, "limit": "a", "leave": 1, "reserve": true}
{"at": 4, "op": "reset", "limit": "a", "leave": 1}
{"at": 5, "limit": "a", "leave": 9.5}"#;
    let replay = ["replay", "--limits", &path("limits.toml"), "--events", "-", "--json"];
    let replayed = run(Some(&database.url), &replay, events);
    assert_eq!((replayed.code, replayed.stderr.as_str()), (Some(0), ""));
    let answers: Vec<Value> = replayed.stdout.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect();
    assert_eq!((&answers[0]["ok"], &answers[0]["value"]), (&true.into(), &7.into()));
    assert_eq!((&answers[1]["ok"], &answers[1]["denied_by"]), (&false.into(), &Value::from(vec!["a"])));
    let errors: Vec<&str> = answers[2..].iter().filter_map(|answer| answer["error"].as_str()).collect();
    assert_eq!(errors, ["invalid_leave", "leave_unsupported", "leave_unsupported", "count_exceeds_capacity"]);
}
