//! `pg-limiter bench --soak` injects faults, checks the books, and leaves nothing behind.

use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use pg_limiter::sqlx;
use serde_json::Value;

use crate::support::Database;
use crate::support::tool::{run, tool};

/// Everything in the database: the rows, the number of answers, the tables.
async fn everything(database: &Database) -> (String, i64, String) {
    let rows = "SELECT coalesce(string_agg(concat_ws(' ', name, key, value, ts, xmin), ','), '') FROM rate_limits";
    let tables = "SELECT string_agg(relname, ',' ORDER BY relname) FROM pg_class WHERE relkind = 'r' \
                  AND relnamespace = 'public'::regnamespace";
    (
        sqlx::query_scalar(rows).fetch_one(&database.pool).await.expect("the rows"),
        sqlx::query_scalar("SELECT count(*) FROM rate_limit_answers").fetch_one(&database.pool).await.expect("answers"),
        sqlx::query_scalar(tables).fetch_one(&database.pool).await.expect("the tables"),
    )
}

/// A database with one row that belongs to an application.
async fn somebody_elses() -> Database {
    let database = Database::migrated().await;
    let limit = ["limit", "mine", "u1", "--rate", "1", "--period", "1d"];
    assert_eq!(run(Some(&database.url), &limit, "").code, Some(0));
    database
}

fn start(url: &str, args: &[&str]) -> Child {
    let mut command = Command::new(tool());
    command.args(args).env("DATABASE_URL", url).stdout(Stdio::piped()).stderr(Stdio::piped());
    command.spawn().expect("start the tool")
}

fn of_json(stdout: &str) -> Vec<Value> {
    stdout.lines().map(|line| serde_json::from_str(line).unwrap_or_else(|error| panic!("{line}: {error}"))).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_soak_survives_its_faults_and_leaves_nothing() {
    let database = somebody_elses().await;
    let before = everything(&database).await;
    let soak = run(Some(&database.url), &["bench", "--soak", "5s", "--callers", "60", "--json"], "");
    assert_eq!((soak.code, soak.stderr.as_str()), (Some(0), ""), "{}", soak.stdout);
    assert_eq!(everything(&database).await, before);

    let lines = of_json(&soak.stdout);
    let (last, looks) = lines.split_last().expect("lines");
    assert!(looks.len() > 5, "{}", soak.stdout);
    for look in looks {
        for field in ["elapsed_s", "decisions", "retries", "faults", "table_bytes", "rows"] {
            assert!(look[field].is_number(), "{field}: {look}");
        }
        assert_eq!((look["rss_bytes"].is_number(), &look["violations"]), (cfg!(target_os = "linux"), &0.into()));
    }
    let summary = &last["summary"];
    for field in ["decisions", "faults", "cancelled", "audits"] {
        assert!(summary[field].as_u64() > Some(0), "{field}: {summary}");
    }
    for fault in ["pg_terminate_backend", "pg_cancel_backend", "row held"] {
        assert!(summary["faults_by_kind"][fault].as_u64() > Some(0), "{fault}: {summary}");
    }
    let ends = (&summary["passed"], &summary["interrupted"], &summary["growth_is_judged"]);
    assert_eq!(ends, (&true.into(), &false.into(), &false.into()), "{summary}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_soak_without_faults_reports_none() {
    let database = somebody_elses().await;
    let before = everything(&database).await;
    let args = ["bench", "--soak", "2s", "--callers", "24", "--no-faults", "--durability", "relaxed"];
    let soak = run(Some(&database.url), &args, "");
    assert_eq!((soak.code, soak.stderr.as_str()), (Some(0), ""), "{}", soak.stdout);
    for words in ["without faults", "Faults: none.", "the run was too short", "violations: 0, in ", "passed"] {
        assert!(soak.stdout.contains(words), "{words}: {}", soak.stdout);
    }
    assert_eq!(everything(&database).await, before);
}

#[tokio::test(flavor = "multi_thread")]
async fn tokens_added_by_others_are_reported_as_violations() {
    let database = somebody_elses().await;
    let before = everything(&database).await;
    let (url, args) = (database.url.clone(), ["bench", "--soak", "4s", "--callers", "24", "--no-faults", "--json"]);
    let soak = tokio::task::spawn_blocking(move || run(Some(&url), &args, ""));
    // In small steps, so that callers can take tokens in between.
    let tamper = "UPDATE rate_limits SET value = value + 20 WHERE name LIKE 'pg-limiter soak % plain'";
    while !soak.is_finished() {
        // It locks rows in no fixed order, so it may deadlock; the next attempt will do.
        let _ = sqlx::query(tamper).execute(&database.pool).await;
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    let soak = soak.await.expect("the run");
    assert_eq!(soak.code, Some(1), "{}{}", soak.stdout, soak.stderr);
    let lines = of_json(&soak.stdout);
    let violation = lines.iter().find_map(|line| line["violation"].as_str()).expect("a violation");
    assert!(violation.starts_with("plain ") && violation.contains("admitted "), "{violation}");
    let summary = &lines.last().expect("lines")["summary"];
    assert!(summary["violations"].as_u64() > Some(0) && summary["passed"] == false, "{summary}");
    assert_eq!(everything(&database).await, before);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_interrupted_soak_leaves_nothing() {
    let database = somebody_elses().await;
    let before = everything(&database).await;
    for signal in ["-INT", "-TERM"] {
        let mut child = start(&database.url, &["bench", "--soak", "1h", "--callers", "24"]);
        for _ in 0..3000 {
            if database.rows().await >= 5 {
                break;
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        assert!(database.rows().await >= 2, "the run has begun");
        let mut stdout = BufReader::new(child.stdout.take().expect("its output"));
        stdout.read_line(&mut String::new()).expect("its first line");
        let killed = Command::new("kill").args([signal, &child.id().to_string()]).status().expect("kill");
        assert!(killed.success());
        let told = std::io::read_to_string(stdout).expect("its output");
        let output = child.wait_with_output().expect("its end");
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert_eq!((output.status.code(), stderr.trim()), (Some(3), "pg-limiter: interrupted"), "{told}");
        assert!(told.contains("violations: 0") && told.contains("interrupted before the end"), "{told}");
        assert_eq!(everything(&database).await, before);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn invalid_soak_options_are_rejected() {
    let database = Database::empty().await;
    let url = Some(database.url.as_str());
    run(url, &["bench", "--soak", "1s"], "").refuses(3, &["\"public\"", "pg-limiter migrate"]);
    let impossible: [&[&str]; 6] = [
        &["--soak", "10s", "--seconds", "2"],
        &["--soak", "10s", "--isolation", "serializable"],
        &["--no-faults"],
        &["--soak", "0s"],
        &["--soak", "8d"],
        &["--soak", "soon"],
    ];
    for args in impossible {
        let soak = run(url, &[&["bench"], args].concat(), "");
        assert_eq!((soak.code, soak.stdout.as_str()), (Some(2), ""), "{args:?}: {}", soak.stderr);
        assert!(soak.stderr.contains(args[0]), "{args:?}: {}", soak.stderr);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_soak_reports_the_faults_that_its_role_may_not_inject() {
    let database = somebody_elses().await;
    let before = everything(&database).await;
    let name = format!("soaker_{}", database.name);
    database
        .execute(&format!(
            "DROP ROLE IF EXISTS {name}; CREATE ROLE {name} LOGIN PASSWORD 'soak';
             REVOKE CREATE ON SCHEMA public FROM PUBLIC;
             REVOKE EXECUTE ON FUNCTION pg_catalog.pg_terminate_backend FROM PUBLIC;
             GRANT USAGE ON SCHEMA public TO {name};
             GRANT EXECUTE ON FUNCTION rate_limit_decide, rate_limit_take_ample, rate_limit_decide_one, rate_limit_held, rate_limit_decide_once,
             rate_limit_reset(text), rate_limit_prune, rate_limit_prune_answers TO {name}"
        ))
        .await;
    let (_, place) = database.url.split_once("://").expect("a URL");
    let place = place.rsplit_once('@').map_or(place, |(_, place)| place);
    let url = format!("postgres://{name}:soak@{place}");
    let soak = run(Some(&url), &["bench", "--soak", "3s", "--callers", "24", "--json"], "");
    assert_eq!(soak.code, Some(0), "{}{}", soak.stdout, soak.stderr);
    for words in ["units of work write no rows", "pg_terminate_backend is skipped", "left to expire"] {
        assert!(soak.stderr.contains(words), "{words}: {}", soak.stderr);
    }
    let lines = of_json(&soak.stdout);
    let faults = &lines.last().expect("lines")["summary"]["faults_by_kind"];
    assert!(faults["pg_cancel_backend"].as_u64() > Some(0) && faults["pg_terminate_backend"].is_null(), "{faults}");
    assert_eq!(everything(&database).await, before);
    database.execute(&format!("DROP OWNED BY {name}; DROP ROLE {name}")).await;
}
