//! `pg-limiter bench` prints figures and leaves nothing behind.

use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};
use std::time::Duration;

use serde_json::Value;

use crate::binary::{run, tool};
use crate::support::{Database, signal};

/// A database with one row that belongs to an application.
async fn somebody_elses() -> Database {
    let database = Database::migrated().await;
    let limit = ["limit", "mine", "u1", "--rate", "1", "--period", "1d"];
    assert_eq!(run(Some(&database.url), &limit, "").code, Some(0));
    database
}

async fn rows(database: &Database) -> String {
    let sql = "SELECT string_agg(concat_ws(' ', name, key, value, ts, xmin), ',') FROM rate_limit.rate_limits";
    pg_limiter::sqlx::query_scalar(sql).fetch_one(&database.pool).await.expect("the rows")
}

#[tokio::test(flavor = "multi_thread")]
async fn figures_are_measured_and_no_row_is_left() {
    let database = somebody_elses().await;
    let before = rows(&database).await;
    let args = ["bench", "--seconds", "0.2", "--callers", "32", "--lanes", "3", "--durability", "relaxed", "--json"];
    let bench = run(Some(&database.url), &args, "");
    assert_eq!((bench.code, bench.stderr.as_str()), (Some(0), ""), "{}", bench.stdout);
    assert_eq!(rows(&database).await, before);

    let report: Value = serde_json::from_str(&bench.stdout).expect("JSON");
    assert_eq!((&report["durability"], &report["lanes"]), (&"relaxed".into(), &3.into()));
    assert!(report["round_trip"]["p50_ms"].as_f64() > Some(0.0), "{report}");
    let measurements = report["measurements"].as_array().expect("an array");
    let names = measurements.iter().map(|m| (m["isolation"].as_str(), m["work"].as_str()));
    let expected = ["lone-caller", "one-key", "many-keys", "all-denied"]
        .into_iter()
        .flat_map(|work| ["serializable", "read-committed"].map(|isolation| (Some(isolation), Some(work))));
    assert!(names.eq(expected), "{report}");
    for figures in measurements {
        for figure in ["decisions", "decisions_per_second", "p50_ms", "p99_ms", "calls_per_batch"] {
            assert!(figures[figure].as_f64() > Some(0.0), "{figure}: {figures}");
        }
        assert!(figures["p99_ms"].as_f64() >= figures["p50_ms"].as_f64(), "{figures}");
        assert!(figures["retries_per_decision"].is_number(), "{figures}");
        let all_denied = figures["work"] == "all-denied";
        assert_eq!(figures["denied"], if all_denied { figures["decisions"].clone() } else { 0.into() }, "{figures}");
        assert_eq!(figures["errors"], 0, "{figures}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_figures_are_also_printed_as_text() {
    let database = somebody_elses().await;
    let args = ["bench", "--seconds", "0.1", "--callers", "8", "--isolation", "read-committed"];
    let bench = run(Some(&database.url), &args, "");
    assert_eq!((bench.code, bench.stderr.as_str()), (Some(0), ""), "{}", bench.stdout);
    for words in ["  READ COMMITTED  ", "8 callers, 10,000 keys", "One hot key: about ", "A lone call takes "] {
        assert!(bench.stdout.contains(words), "{}", bench.stdout);
    }
    assert!(!bench.stdout.contains("SERIALIZABLE") && !bench.stdout.contains("private"), "{}", bench.stdout);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_interrupted_bench_leaves_no_row() {
    let database = somebody_elses().await;
    let before = rows(&database).await;
    // One signal during the round trips, and one during the decisions.
    for (name, seconds) in [("INT", "30"), ("TERM", "3")] {
        // The suite may run in the background of a shell, where SIGINT is ignored.
        let mut command = Command::new("env");
        command
            .arg("--default-signal")
            .arg(tool())
            .args(["bench", "--seconds", seconds])
            .env("DATABASE_URL", &database.url);
        let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("start the tool");
        let mut stdout = BufReader::new(child.stdout.take().expect("its output"));
        stdout.read_line(&mut String::new()).expect("its first line");
        for _ in 0..1000 {
            if seconds == "30" || database.rows().await >= 10_000 {
                break;
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        signal(child.id(), name);
        let output = child.wait_with_output().expect("its end");
        assert_eq!(
            (output.status.code(), String::from_utf8_lossy(&output.stderr).trim()),
            (Some(3), "pg-limiter: interrupted")
        );
        assert_eq!(rows(&database).await, before);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn invalid_bench_options_are_rejected() {
    let database = Database::empty().await;
    let url = Some(database.url.as_str());
    run(url, &["bench"], "").refuses(3, &["\"rate_limit\"", "pg-limiter migrate"]);
    run(url, &["bench", "--schema", "limits", "--json"], "").refuses(3, &["\"limits\"", "pg-limiter migrate"]);
    for (option, bad) in [("--seconds", "0 -1 NaN inf 1e9 soon"), ("--callers", "0 -1 1.5"), ("--lanes", "0")] {
        for value in bad.split(' ') {
            let bench = run(url, &["bench", &format!("{option}={value}")], "");
            assert_eq!((bench.code, bench.stdout.as_str()), (Some(2), ""), "{}", bench.stderr);
            assert!(bench.stderr.contains(option), "{}", bench.stderr);
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_bench_without_decisions_prints_no_figures() {
    let database = somebody_elses().await;
    let before = rows(&database).await;
    database
        .execute(
            "CREATE FUNCTION no() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE EXCEPTION 'not here'; END $$;
             CREATE TRIGGER no BEFORE INSERT ON rate_limit.rate_limits FOR EACH ROW EXECUTE FUNCTION no()",
        )
        .await;
    run(Some(&database.url), &["bench", "--seconds", "0.1", "--json"], "")
        .refuses(3, &["every call failed", "not here"]);
    assert_eq!(rows(&database).await, before);
}
