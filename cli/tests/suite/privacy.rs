//! No output of a failing command shows a key, whatever the database adds to its own errors.

use crate::support::Database;

const KEY: &str = "anna.secret@example.com";
const PART: &str = "anna";

#[tokio::test]
async fn failing_commands_of_the_tool_show_no_key() {
    let database = Database::migrated().await;
    let empty = Database::empty().await;
    let url = Some(database.url.as_str());
    let long = KEY.repeat(50);
    let rate = ["--rate", "1", "--period", "1h"];
    let run = |url, args: &[&str], code: i32| {
        let args = [args, &rate].concat();
        for args in [args.clone(), [args, vec!["--json"]].concat()] {
            let run = crate::binary::run(url, &args, "");
            let output = format!("{}{}", run.stdout, run.stderr);
            assert_eq!(run.code, Some(code), "{args:?}: {output}");
            assert!(!output.is_empty() && !output.contains(PART), "{output}");
        }
    };
    crate::binary::run(url, &["limit", "a", KEY, "--rate", "1", "--period", "1h"], "");
    run(url, &["limit", "a", KEY], 1);
    run(url, &["limit", "a", KEY, "--count", "2"], 2);
    run(url, &["limit", "a", KEY, "--kind", "sliding_window", "--reserve"], 2);
    run(url, &["limit", "a", &long], 2);
    run(Some(&empty.url), &["limit", "a", KEY], 3);
    run(Some(&empty.url), &["peek", "a", KEY], 3);
    run(Some("postgres://127.0.0.1:1/anna"), &["check", "a", KEY], 3);
    // A constraint rejects rows of the key; its DETAIL contains the row.
    database
        .execute("ALTER TABLE rate_limit.rate_limits ADD CONSTRAINT nobody CHECK (key NOT LIKE '%anna%') NOT VALID")
        .await;
    run(url, &["limit", "a", &format!("{KEY} 2")], 3);
}
