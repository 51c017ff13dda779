//! `--json` of every subcommand: what it prints can be parsed, and errors go to standard error.

use std::collections::BTreeSet;

use pg_limiter::Limits;
use pg_limiter::queue::{Job, Queue};
use serde_json::Value;

use crate::binary::{files, run};
use crate::support::Database;
use crate::support::gate::limiter;
use crate::support::scheduled;

const LIMITS: &str = "[limits.api]\nkind = \"token_bucket\"\nrate = 100\nperiod = \"1m\"\n";
const EVENTS: &str = "{\"at\": 1767225600123, \"limit\": \"api\", \"key\": \"u1\"}\n";

/// The output of each subcommand with `--json`: its arguments, and a field of each object. `{limits}` and `{events}` are files,
/// `{job}` and its like the ids of jobs.
const PRINTS: &[(&str, &str, &str)] = &[
    ("demo", "", "scene"),
    ("bench", "--seconds 0.05 --callers 4 --isolation read-committed", "round_trip"),
    ("migrate", "", "applied"),
    ("migrate", "--check", "differences"),
    ("migrate", "--list", "version"),
    ("limit", "api u1 --limits {limits}", "retry_after_ms"),
    ("check", "api u1 --limits {limits}", "retry_after_ms"),
    ("peek", "api u1 --limits {limits}", "full_in_ms"),
    ("reset", "api u1", "rows"),
    ("reset", "api --all-keys", "rows"),
    ("block", "banned 203.0.113.7 1h", "blocked_ms"),
    ("unblock", "banned 203.0.113.7", "was_blocked_ms"),
    ("forget", "u1", "buckets"),
    ("prune", "--dead-older-than 30d", "dead_jobs"),
    ("grants", "--for app app_role", "grants"),
    ("limits diff", "{limits}", "undefined"),
    ("limits apply", "{limits}", "defined"),
    ("limits show", "", "limits"),
    ("queue ls", "", "overdue_ms"),
    ("queue ls", "--jobs", "run_at"),
    ("queue show", "{job}", "payload"),
    ("queue requeue", "{dead} --limits {limits}", "run_at"),
    ("queue cancel", "{job} --limits {limits}", "was"),
    ("queue pause", "mails u1", "paused"),
    ("queue resume", "mails u1", "resumed"),
    ("queue drain", "mails", "jobs"),
    ("queue discard", "{also_dead}", "was"),
    ("queue discard", "--queue mails", "jobs"),
    ("top", "--once --interval 200ms", "coverage"),
    ("doctor", "", "found"),
    ("simulate", "--rate 10 --period 1s --for 5s", "longest_wait_ms"),
    ("replay", "--limits {limits} --events {events}", "value"),
];

/// The subcommands without `--json`, and why.
const WITHOUT: &[(&str, &str)] = &[
    ("exec", "its output is the output of the command"),
    ("export", "JSON is its default format; the other is CSV"),
    ("ui", "it serves a page"),
    ("completions", "a script for a shell"),
    ("man", "pages for `man`"),
];

/// The subcommands without subcommands of their own: `queue ls`.
fn leaves(command: &clap::Command, path: &str) -> Vec<(String, clap::Command)> {
    let below = |one: &clap::Command| leaves(one, format!("{path} {}", one.get_name()).trim());
    match command.has_subcommands() {
        true => command.get_subcommands().flat_map(below).collect(),
        false => vec![(path.to_owned(), command.clone())],
    }
}

#[test]
fn every_subcommand_prints_json_or_has_a_reason_not_to() {
    let commands = leaves(&pg_limiter_cli::command(), "");
    assert!(commands.len() > 20, "{commands:?}");
    for (name, command) in &commands {
        let json = command.get_arguments().find(|argument| argument.get_long() == Some("json"));
        let is_tested = PRINTS.iter().any(|(tested, ..)| tested == name);
        let has_reason = WITHOUT.iter().any(|(without, _)| without == name);
        assert_eq!((json.is_some(), is_tested), (!has_reason, !has_reason), "add {name} to one of the two lists above");
        if let Some(json) = json {
            let help = json.get_help().expect(name).to_string();
            assert!(help.starts_with("Print") && help.contains("JSON"), "{name}: {help}");
        }
    }
    let known: BTreeSet<&str> = commands.iter().map(|(name, _)| name.as_str()).collect();
    let listed = PRINTS.iter().map(|(name, ..)| name).chain(WITHOUT.iter().map(|(name, _)| name));
    listed.for_each(|name| assert!(known.contains(name), "there is no subcommand {name}"));
}

/// The arguments with the names of the files and the ids of jobs.
fn filled(args: &str, path: impl Fn(&str) -> String, [job, dead, also_dead]: [i64; 3]) -> String {
    let args = args.replace("{limits}", &path("limits.toml")).replace("{events}", &path("events.jsonl"));
    let args = args.replace("{job}", &job.to_string()).replace("{dead}", &dead.to_string());
    args.replace("{also_dead}", &also_dead.to_string())
}

/// The objects that were printed: one per line, or in one array.
fn objects(text: &str) -> Vec<Value> {
    match serde_json::from_str(text) {
        Ok(Value::Array(objects)) => objects,
        Ok(object) => vec![object],
        Err(_) => text.lines().map(|line| serde_json::from_str(line).unwrap_or_else(|_| panic!("{line}"))).collect(),
    }
}

async fn job(database: &Database) -> i64 {
    let queue = Queue::new(&limiter(&database.pool, Limits::from_toml(LIMITS).expect("limits"), |_| {}), "mails");
    let job = Job::new(("api", "u1"), &"hello").expect("a job");
    scheduled(&queue.expect("a queue").enqueue(job).await.expect("an answer")).id
}

async fn dead(database: &Database) -> i64 {
    let id = job(database).await;
    let change = "SET state = 'dead', finished_at = 0, last_error = 'no' WHERE id =";
    database.execute(&format!("UPDATE rate_limit.jobs {change} {id}")).await;
    id
}

#[tokio::test(flavor = "multi_thread")]
async fn what_subcommands_print_as_json_can_be_parsed() {
    let (_dir, path) = files(&[("limits.toml", LIMITS), ("events.jsonl", EVENTS)]);
    for (name, args, field) in PRINTS {
        let database = Database::migrated().await;
        let (job, dead, also_dead) = (job(&database).await, dead(&database).await, dead(&database).await);
        let ids = [job, dead, also_dead];
        let args = filled(&format!("{name} {args} --json"), &path, ids);
        let printed = run(Some(&database.url), &args.split_whitespace().collect::<Vec<_>>(), "");
        let code = if ["doctor", "limits diff"].contains(name) {
            printed.code.filter(|code| *code == 1).or(Some(0))
        } else {
            Some(0)
        };
        assert_eq!(printed.code, code, "{args}: {}", printed.stderr);
        let objects = objects(&printed.stdout);
        assert!(!objects.is_empty(), "{args}");
        for object in objects {
            assert!(object.get(field).is_some(), "{args}: no {field} in {object}");
        }
    }
}

#[test]
fn errors_are_printed_as_text_and_have_their_exit_codes() {
    let (_dir, path) = files(&[("limits.toml", LIMITS), ("events.jsonl", EVENTS)]);
    let connects = |name: &str, args: &str| name != "grants" && args != "--list";
    for (name, args, _) in PRINTS.iter().filter(|(name, args, _)| connects(name, args)) {
        let args = filled(&format!("{name} {args} --json"), &path, [1, 2, 3]);
        let args: Vec<&str> = args.split_whitespace().collect();
        run(Some("postgres://nobody@127.0.0.1:1/none"), &args, "").refuses(3, &["cannot connect"]);
    }
}
