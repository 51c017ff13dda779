//! The bench `soak` injects faults, compares its count with the balances, and leaves nothing behind.

use std::future::pending;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use pg_limiter::migrate::Use;
use pg_limiter::{Limit, Limiter, Limits, sqlx};
use tokio::sync::oneshot;

use self::bench::options::Options;
use self::bench::report::{Event, Sample, Summary};
use self::bench::soak::run;
use crate::support::Database;
use crate::support::guide;

#[path = "../../benches/soak/mod.rs"]
mod bench;

/// Everything in the database: the rows, the number of answers, the tables.
async fn everything(database: &Database) -> (String, i64, String) {
    let rows =
        "SELECT coalesce(string_agg(concat_ws(' ', name, key, value, ts, xmin), ','), '') FROM rate_limit.rate_limits";
    let tables = "SELECT string_agg(relname, ',' ORDER BY relname) FROM pg_class WHERE relkind = 'r' \
                  AND relnamespace = 'rate_limit'::regnamespace";
    (
        sqlx::query_scalar(rows).fetch_one(&database.pool).await.expect("the rows"),
        sqlx::query_scalar("SELECT count(*) FROM rate_limit.answers").fetch_one(&database.pool).await.expect("answers"),
        sqlx::query_scalar(tables).fetch_one(&database.pool).await.expect("the tables"),
    )
}

/// A database with one row that belongs to an application.
async fn database_in_use() -> Database {
    let database = Database::migrated().await;
    let limit = Limit::token_bucket(1, Duration::from_secs(86_400));
    let limits = Limits::new().define("mine", limit).expect("a limit");
    let decision = Limiter::new(database.pool.clone(), limits).limit(("mine", "u1")).await.expect("a decision");
    assert!(decision.is_allowed());
    database
}

fn options(args: &[&str]) -> Options {
    read(args).expect("options").expect("no --help")
}

fn read(args: &[&str]) -> Result<Option<Options>, String> {
    Options::read(args.iter().map(|arg| (*arg).to_owned())).map_err(|error| error.to_string())
}

/// The output of a run.
#[derive(Default)]
struct Shown {
    samples: Vec<Sample>,
    violations: Vec<String>,
    notes: Vec<String>,
    text: String,
}

/// Runs a soak to its end or until `interrupt` completes.
async fn soak(
    url: &str,
    args: &[&str],
    interrupt: impl Future<Output = ()> + Send,
) -> (Result<Summary, String>, Shown) {
    let mut options = options(args);
    options.database_url = Some(url.to_owned());
    let shown = Arc::new(Mutex::new(Shown::default()));
    let show = Arc::clone(&shown);
    let ran = run(&options, interrupt, move |event| {
        let mut shown = show.lock().expect("no panic");
        shown.text += &format!("{event}\n");
        match event {
            Event::Sample(sample) => shown.samples.push(sample.clone()),
            Event::Violation(violation) => shown.violations.push(violation.to_owned()),
            Event::Note(note) => shown.notes.push(note.to_owned()),
            Event::Setting(_) | Event::Summary(_) => {}
        }
    });
    let ran = ran.await.map_err(|error| error.to_string());
    let shown = std::mem::take(&mut *shown.lock().expect("no panic"));
    (ran, shown)
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "takes long: run tests/long"]
async fn a_soak_survives_its_faults_and_leaves_nothing() {
    let database = database_in_use().await;
    let before = everything(&database).await;
    let (summary, shown) = soak(&database.url, &["--time", "5s", "--callers", "60"], pending()).await;
    let (summary, text) = (summary.expect("a summary"), shown.text);
    assert_eq!((summary.exit_code(), shown.notes, shown.violations), (0, Vec::new(), Vec::new()), "{text}");
    assert_eq!(everything(&database).await, before);

    assert!(shown.samples.len() > 5, "{text}");
    for sample in &shown.samples {
        assert!(sample.elapsed_ms > 0 && sample.table_bytes.is_some() && sample.rows.is_some(), "{text}");
        assert_eq!((sample.rss_bytes.is_some(), sample.violations), (cfg!(target_os = "linux"), 0), "{text}");
    }
    let end = &summary.end;
    assert!([end.decisions, end.faults, end.cancelled, end.audits].iter().all(|count| *count > 0), "{text}");
    for fault in ["pg_terminate_backend", "pg_cancel_backend", "row held"] {
        assert!(summary.faults_by_kind.get(fault) > Some(&0), "{fault}: {text}");
    }
    assert_eq!((summary.passed, summary.interrupted, summary.growth_is_judged), (true, false, false), "{text}");
    // As `--json` prints it.
    let json = serde_json::to_value(Event::Summary(&summary)).expect("JSON");
    assert_eq!((&json["summary"]["passed"], &json["summary"]["violations"]), (&true.into(), &0.into()), "{json}");
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "takes long: run tests/long"]
async fn a_soak_without_faults_reports_none() {
    let database = database_in_use().await;
    let before = everything(&database).await;
    let args = ["--time", "6s", "--callers", "24", "--no-faults", "--durability", "relaxed"];
    let (summary, shown) = soak(&database.url, &args, pending()).await;
    let (summary, text) = (summary.expect("a summary"), shown.text);
    assert_eq!((summary.exit_code(), shown.notes), (0, Vec::new()), "{text}");
    assert_eq!((summary.end.faults, summary.faults_by_kind.len(), summary.growth_is_judged), (0, 0, false), "{text}");
    assert_eq!((summary.setting.faults, summary.setting.durability), (false, "relaxed"), "{text}");
    for words in ["without faults", "faults: none", "the run was too short", "violations: 0, in ", "passed"] {
        assert!(text.contains(words), "{words}: {text}");
    }
    assert_eq!(everything(&database).await, before);
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "takes long: run tests/long"]
async fn tokens_added_by_others_are_reported_as_violations() {
    let database = database_in_use().await;
    let before = everything(&database).await;
    let url = database.url.clone();
    let running =
        tokio::spawn(async move { soak(&url, &["--time", "4s", "--callers", "24", "--no-faults"], pending()).await });
    // In small steps, so that callers can take tokens in between.
    let tamper = "UPDATE rate_limit.rate_limits SET value = value + 20 WHERE name LIKE 'pg-limiter soak % plain'";
    while !running.is_finished() {
        // It locks rows in no fixed order, so it may deadlock; the next attempt will do.
        let _ = sqlx::query(tamper).execute(&database.pool).await;
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    let (summary, shown) = running.await.expect("the run");
    let (summary, text) = (summary.expect("a summary"), shown.text);
    assert_eq!((summary.exit_code(), summary.passed), (1, false), "{text}");
    let violation = shown.violations.first().expect("a violation");
    assert!(violation.starts_with("plain ") && violation.contains("admitted "), "{violation}");
    assert!(summary.end.violations > 0, "{text}");
    assert_eq!(everything(&database).await, before);
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "takes long: run tests/long"]
async fn an_interrupted_soak_leaves_nothing() {
    let database = database_in_use().await;
    let before = everything(&database).await;
    // Interrupted while calls are made, and before the first call.
    for least_rows in [5, 1] {
        let (interrupt, interrupted) = oneshot::channel::<()>();
        let url = database.url.clone();
        let running = tokio::spawn(async move {
            let interrupted = async { interrupted.await.expect("an interrupt") };
            soak(&url, &["--time", "1h", "--callers", "24"], interrupted).await
        });
        for _ in 0..3000 {
            if database.rows().await >= least_rows {
                break;
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        assert!(database.rows().await >= least_rows.min(2), "the run has begun");
        interrupt.send(()).expect("the run waits for it");
        let (summary, shown) = running.await.expect("the run");
        let (summary, text) = (summary.expect("a summary"), shown.text);
        assert_eq!((summary.exit_code(), summary.interrupted, summary.passed), (3, true, false), "{text}");
        assert_eq!(shown.notes, [""; 0], "{text}");
        assert!(text.contains("violations: 0") && text.contains("interrupted before the end"), "{text}");
        assert_eq!(everything(&database).await, before);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_soak_without_the_limiters_tables_fails() {
    let database = Database::empty().await;
    let (summary, shown) = soak(&database.url, &["--time", "1s"], pending()).await;
    let error = summary.err().expect("an error");
    assert!(error.contains("\"rate_limit\"") && error.contains("pg-limiter migrate"), "{error}");
    assert_eq!(shown.text, "");
}

#[test]
fn invalid_soak_options_are_rejected() {
    let impossible: [&[&str]; 16] = [
        &["--seconds", "2"],
        &["--isolation", "serializable"],
        &["--no_faults"],
        &["--time"],
        &["--time", "0s"],
        &["--time", "8d"],
        &["--time", "soon"],
        &["--callers", "0"],
        &["--callers", "65537"],
        &["--callers", "-1"],
        &["--callers", "many"],
        &["--lanes", "0"],
        &["--lanes", "129"],
        &["--durability", "slow"],
        &["--schema", ""],
        &["--schema", "a%"],
    ];
    for args in impossible {
        let error = read(args).expect_err(args[0]);
        assert!(error.contains(args[0]), "{args:?}: {error}");
    }
    for length in ["1 month", "1M", "1y"] {
        let error = read(&["--time", length]).expect_err(length);
        for words in ["--time", &format!("\"{length}\""), "months and years", "\"30d\""] {
            assert!(error.contains(words), "no {words} in: {error}");
        }
    }
    assert!(read(&["--bench", "--help"]).expect("help").is_none());
    assert!(options(&["--time", "7d", "--callers", "65536", "--lanes", "128", "--json"]).json);
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "takes long: run tests/long"]
async fn a_soak_reports_the_faults_that_its_role_may_not_inject() {
    let database = database_in_use().await;
    let before = everything(&database).await;
    let name = format!("soaker_{}", database.name);
    database
        .execute(&format!(
            "DROP ROLE IF EXISTS {name}; CREATE ROLE {name} LOGIN PASSWORD 'soak';
             REVOKE CREATE ON SCHEMA public FROM PUBLIC;
             REVOKE EXECUTE ON FUNCTION pg_catalog.pg_terminate_backend FROM PUBLIC;
             {}",
            guide::grants(Use::App).replace("app_role", &name)
        ))
        .await;
    let (_, place) = database.url.split_once("://").expect("a URL");
    let place = place.rsplit_once('@').map_or(place, |(_, place)| place);
    let url = format!("postgres://{name}:soak@{place}");
    let (summary, shown) = soak(&url, &["--time", "3s", "--callers", "24"], pending()).await;
    let (summary, text) = (summary.expect("a summary"), shown.text);
    assert_eq!(summary.exit_code(), 0, "{text}");
    for words in ["units of work write no rows", "pg_terminate_backend is skipped", "left to expire"] {
        assert!(shown.notes.iter().any(|note| note.contains(words)), "{words}: {text}");
    }
    let faults = &summary.faults_by_kind;
    assert!(faults.get("pg_cancel_backend") > Some(&0) && !faults.contains_key("pg_terminate_backend"), "{text}");
    assert_eq!(everything(&database).await, before);
    database.execute(&format!("DROP OWNED BY {name}; DROP ROLE {name}")).await;
}
