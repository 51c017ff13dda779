//! Texts of files and keys cannot control the terminal, and do not pretend to be something else.

use crate::binary::{files, run};
use crate::support::Database;
use crate::ui_server::Ui;

const LIMITS: &str = "[limits.api]\nkind = \"fixed_window\"\nrate = 1\nperiod = \"1h\"\nstart = \"0s\"\n";
/// ESC, a C1 control character, a right-to-left override, an isolate, a line separator and an invisible character.
const ODD: &str = "\u{1b}[31m\u{9b}31m\u{202e}\u{2066}\u{2028}\u{200b}";
const ESCAPED: &str = "\\u{1b}[31m\\u{9b}31m\\u{202e}\\u{2066}\\u{2028}\\u{200b}";

fn is_clean(text: &str) -> bool {
    !text.chars().any(|c| (c.is_control() && c != '\n') || ODD[4..].contains(c) && !c.is_ascii())
}

#[test]
fn messages_that_quote_files_are_escaped() {
    let event =
        format!("{{\"at\": 1767225600000, \"{ODD}\": 1}}\n").replace('\u{1b}', "\\u001b").replace('\u{9b}', "\\u009b");
    let limit = format!("[limits.api]\nkind = \"{}\"\n", ODD.replace('\u{1b}', "\\u001b").replace('\u{9b}', "\\u009b"));
    let field = format!("x{ODD} - - [17/May/2015:10:05:03 +0000] \"GET / HTTP/1.1\" 200 1\n");
    let time = format!("::1 - - [{ODD}] \"GET / HTTP/1.1\" 200 1\n");
    let (_dir, path) = files(&[
        ("limits.toml", LIMITS),
        ("odd.toml", &limit),
        ("events.jsonl", &event),
        ("field.log", &field),
        ("time.log", &time),
    ]);
    let replay =
        |limits: &str, recorded: &[&str]| run(None, &[&["replay", "--limits", &path(limits)], recorded].concat(), "");
    for (name, refused) in [
        ("odd.toml", replay("odd.toml", &["--events", &path("events.jsonl")])),
        ("events.jsonl", replay("limits.toml", &["--events", &path("events.jsonl")])),
        ("field.log", replay("limits.toml", &["--apply", "api", "--access-log", &path("field.log")])),
        ("time.log", replay("limits.toml", &["--apply", "api", "--access-log", &path("time.log")])),
    ] {
        assert_eq!((refused.code, refused.stdout.as_str()), (Some(2), ""), "{}", refused.stderr);
        assert!(refused.stderr.contains(name) && refused.stderr.contains(ESCAPED), "{name}: {:?}", refused.stderr);
        assert!(is_clean(&refused.stderr), "{name}: {:?}", refused.stderr);
    }
}

/// JSON has line breaks within texts. A message with one could pretend to be two.
#[test]
fn line_breaks_of_json_are_escaped() {
    let (_dir, path) = files(&[
        ("limits.toml", LIMITS),
        ("limits.json", "{\"limits\": {\"a\": {\"kind\": \"x\\npg-limiter: all is well\"}}}"),
        ("json.log", "{\"time\": \"2015-05-17T10:05:03Z\", \"remote_addr\": \"x\\nfake\"}\n"),
    ]);
    let log = |limits: &str| {
        let args = ["replay", "--limits", &path(limits), "--apply", "api", "--log-format", "json", "--access-log"];
        run(None, &[&args[..], &[&path("json.log")]].concat(), "")
    };
    log("limits.toml").refuses(2, &["json.log, line 1: \"x\\nfake\" is no address"]);
    log("limits.json").refuses(2, &["`x\\npg-limiter: all is well`"]);
}

#[test]
fn messages_that_quote_arguments_are_escaped() {
    for args in [
        &["limit", "api", "k", "--rate", ODD, "--period", "1h"][..],
        &["queue", "show", ODD],
        &["exec", "--slots", "1", "--exit-code", &format!("{ODD}=1"), "x", "--", "true"],
        &["replay", "--log-format", ODD, "--access-log", "x", "--limits", "x", "--apply", "x"],
        &["limit", "api", &format!("--{ODD}")],
        &[ODD],
    ] {
        let refused = run(None, args, "");
        assert_eq!((refused.code, refused.stdout.as_str()), (Some(2), ""), "{args:?}: {}", refused.stderr);
        assert!(!refused.stderr.contains("\\\\u{1b}"), "{args:?}: {:?}", refused.stderr);
        assert!(refused.stderr.contains("\\u{1b}") && is_clean(&refused.stderr), "{args:?}: {:?}", refused.stderr);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn keys_that_differ_look_different_in_aligned_columns() {
    let database = Database::empty().await;
    let long = "k".repeat(60);
    let keys = [
        "a\u{fffd}b",
        "a\u{1}b",
        "a\u{2}b",
        "a\\u{1}b",
        "ab\u{202e}",
        "ab",
        "ab ",
        "キー",
        "",
        "-",
        &format!("{long}1"),
        &format!("{long}2"),
    ];
    let events: String = keys
        .iter()
        .flat_map(|key| [key; 2])
        .map(|key| format!("{}\n", serde_json::json!({"at": 1_767_225_600_000_u64, "limit": "api", "key": key})))
        .collect();
    let (_dir, path) = files(&[("limits.toml", LIMITS), ("events.jsonl", &events)]);
    let args = ["replay", "--limits", &path("limits.toml"), "--events", &path("events.jsonl")];
    let table = run(Some(&database.url), &args, "");
    assert_eq!(table.code, Some(0), "{}", table.stderr);
    assert!(is_clean(&table.stdout), "{:?}", table.stdout);
    let rows: Vec<&str> = table.stdout.lines().filter(|line| line.starts_with("api ")).collect();
    let shown: std::collections::HashSet<&str> = rows.iter().filter_map(|row| row.split_whitespace().nth(1)).collect();
    assert_eq!((rows.len(), shown.len()), (keys.len(), keys.len()), "{}", table.stdout);
    let wide = rows.iter().find(|row| row.contains("キー")).expect("the key");
    let usual = rows.iter().find(|row| row.contains("  ab  ")).expect("the key");
    assert_eq!(wide.chars().count() + 2, usual.chars().count(), "{}", table.stdout);
}

#[tokio::test(flavor = "multi_thread")]
async fn names_of_limits_are_escaped_in_what_the_page_offers() {
    let database = Database::migrated().await;
    let limits =
        format!("{{\"limits\": {{\"{ODD}\": {{\"kind\": \"token_bucket\", \"rate\": 1, \"period\": \"1h\"}}}}}}");
    let limits = limits.replace('\u{1b}', "\\u001b").replace('\u{9b}', "\\u009b");
    let (_dir, path) = files(&[("limits.json", &limits)]);
    let ui = Ui::start(Some(&database), &["--limits", &path("limits.json")]);
    let page = ui.get("/what-if").await.1;
    assert!(page.contains(&format!(">{ESCAPED}: token_bucket, 1 per 1h")), "{page}");
}
