//! `pg-limiter export` prints every row as it is stored, in both formats.

use std::fs;

use pg_limiter::sqlx;
use serde_json::Value;

use crate::binary::{Run, files, run};
use crate::doctor::{Role, version};
use crate::lines::{EVENT, replay};
use crate::support::Database;
use crate::tool::ends_well_if_nobody_reads;

fn export(database: &Database, args: &[&str]) -> Run {
    run(Some(&database.url), &[&["export"][..], args].concat(), "")
}

fn objects(export: &Run) -> Vec<Value> {
    let objects: Vec<Value> = export.stdout.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect();
    assert_eq!(export.code, Some(0), "{}", export.stderr);
    let rows = if objects.len() == 1 { "row" } else { "rows" };
    let note = format!("pg-limiter: {} {rows}", objects.len());
    assert!(export.stderr.replace(',', "").starts_with(&note), "no {note:?} in: {}", export.stderr);
    objects
}

fn records(text: &str) -> Vec<Vec<String>> {
    let mut reader = csv::ReaderBuilder::new().has_headers(false).from_reader(text.as_bytes());
    reader.records().map(|record| record.expect("CSV").iter().map(str::to_owned).collect()).collect()
}

const ROWS: &str = r#"
    INSERT INTO rate_limit.rate_limits (name, key, shard, shards, value, ts, idle_at, detail) VALUES
    ('a', 'u1', 0, 1, 2.5, 1767225600000001, 1767225660000000, NULL),
    ('a', E'=cmd|''/C calc''!A0,"q"\r\nb', 0, 1, -0.1, 0, 9223372036854775807, NULL),
    ('a', '', 0, 1, 1e-100, -1, 0, NULL),
    ('a', 'é — 日本', 0, 1, 0.30000000000000004, 5, 5, NULL),
    ('s', 'u1', 0, 2, 1, 7, 7, NULL),
    ('s', 'u1', 1, 2, 3, 7, 7, NULL),
    ('w', 'u1', 0, 1, 1, 1767225600000000, 1767225600000000, '{60000000,0,10,2,0.5}')
"#;

#[tokio::test(flavor = "multi_thread")]
async fn json_has_every_row_exactly() {
    let database = Database::migrated().await;
    database.execute(ROWS).await;
    let rows = objects(&export(&database, &[]));
    let places: Vec<(&str, &str, i64)> = rows
        .iter()
        .map(|row| (row["name"].as_str().unwrap(), row["key"].as_str().unwrap(), row["shard"].as_i64().unwrap()))
        .collect();
    let formula = "=cmd|'/C calc'!A0,\"q\"\r\nb";
    // Ordered by bytes, like the primary key.
    assert_eq!(
        places,
        [
            ("a", "", 0),
            ("a", formula, 0),
            ("a", "u1", 0),
            ("a", "é — 日本", 0),
            ("s", "u1", 0),
            ("s", "u1", 1),
            ("w", "u1", 0)
        ]
    );
    assert_eq!(
        rows[2],
        serde_json::json!({
            "name": "a", "key": "u1", "shard": 0, "shards": 1, "value": 2.5, "ts": 1_767_225_600_000_001_i64,
            "idle_at": 1_767_225_660_000_000_i64, "detail": null, "ts_time": "2026-01-01T00:00:00.000001Z",
            "idle_at_time": "2026-01-01T00:01:00Z",
        })
    );
    let text = export(&database, &["--limit", "a", "--key", "u1"]).stdout;
    assert_eq!(
        text,
        "{\"name\": \"a\", \"key\": \"u1\", \"shard\": 0, \"shards\": 1, \"value\": 2.5, \"ts\": 1767225600000001, \
         \"idle_at\": 1767225660000000, \"detail\": null, \"ts_time\": \"2026-01-01T00:00:00.000001Z\", \
         \"idle_at_time\": \"2026-01-01T00:01:00Z\"}\n"
    );
    assert_eq!(rows[1]["idle_at"], i64::MAX);
    assert_eq!(rows[1]["idle_at_time"], Value::Null, "the year is out of range");
    assert_eq!(rows[0]["value"], 1e-100);
    assert_eq!(rows[3]["value"], 0.30000000000000004);
    assert_eq!(rows[6]["detail"], serde_json::json!([60_000_000, 0, 10, 2, 0.5]));
}

#[tokio::test(flavor = "multi_thread")]
async fn the_number_of_rows_is_reported_even_if_it_is_zero() {
    let database = Database::migrated().await;
    database.execute(ROWS).await;
    let says = |args: &[&str], code: i32, rows: usize, note: &str| {
        let export = export(&database, args);
        assert_eq!((export.code, export.stdout.lines().count()), (Some(code), rows), "{}", export.stderr);
        assert_eq!(export.stderr.trim_end(), note);
    };
    says(&[], 0, 7, "pg-limiter: 7 rows");
    says(&["--limit", "w"], 0, 1, "pg-limiter: 1 row");
    says(&["--limit", "nosuch"], 0, 0, "pg-limiter: 0 rows: the limit \"nosuch\" has no row");
    says(&["--limit", "nosuch", "--must-exist"], 1, 0, "pg-limiter: 0 rows: the limit \"nosuch\" has no row");
    says(&["--limit", "s", "--must-exist"], 0, 2, "pg-limiter: 2 rows");
    let some = ["--limit", "s", "--limit", "nosuch", "--key", "u1", "--must-exist"];
    says(&some, 1, 2, "pg-limiter: 2 rows: the limit \"nosuch\" has no row for this key");
    says(&["--key", "nobody", "--must-exist"], 1, 0, "pg-limiter: 0 rows: no limit has a row for this key");
    // A mistake does not empty an existing file.
    let (_dir, path) = files(&[("x.json", "yesterday")]);
    let file = path("x.json");
    says(
        &["--limit", "nosuch", "--must-exist", "--output", &file],
        1,
        0,
        "pg-limiter: 0 rows: the limit \"nosuch\" has no row",
    );
    assert_eq!(fs::read_to_string(&file).expect("the file"), "yesterday");
    database.execute("DELETE FROM rate_limit.rate_limits").await;
    says(&["--must-exist"], 1, 0, "pg-limiter: 0 rows: the table is empty");
}

#[tokio::test(flavor = "multi_thread")]
async fn csv_can_be_copied_back() {
    let database = Database::migrated().await;
    database.execute(ROWS).await;
    let csv = export(&database, &["--format", "csv"]);
    assert_eq!((csv.code, csv.stderr.as_str()), (Some(0), "pg-limiter: 7 rows\n"));
    let records = records(&csv.stdout);
    assert_eq!(records[0].join(","), "name,key,shard,shards,value,ts,idle_at,detail,ts_time,idle_at_time");
    assert_eq!(records.len(), 8);
    assert_eq!(records[2][1], "=cmd|'/C calc'!A0,\"q\"\r\nb", "as it is stored");
    assert_eq!(records[7][7], "{60000000,0,10,2,0.5}");
    // The first eight columns are those of the table, in the format of COPY.
    database.execute("CREATE TABLE read (LIKE rate_limit.rate_limits)").await;
    for record in &records[1..] {
        let cells = record[..8].iter().map(|cell| format!("'{}'", cell.replace('\'', "''")));
        let cells: Vec<String> = cells.map(|cell| if cell == "''" { "NULL".to_owned() } else { cell }).collect();
        let key = if record[1].is_empty() { "''" } else { &cells[1] };
        let rest = cells[2..].join(", ");
        database.execute(&format!("INSERT INTO read VALUES ({}, {key}, {rest})", cells[0])).await;
    }
    let differing = "SELECT count(*) FROM ((TABLE rate_limit.rate_limits EXCEPT TABLE read) UNION ALL \
                     (TABLE read EXCEPT TABLE rate_limit.rate_limits)) AS d";
    let differing: i64 = sqlx::query_scalar(differing).fetch_one(&database.pool).await.expect("a count");
    assert_eq!(differing, 0);

    let safe = export(&database, &["--format", "csv", "--no-formulas"]);
    assert_eq!(self::records(&safe.stdout)[2][1], "'=cmd|'/C calc'!A0,\"q\"\r\nb");
    assert_eq!(self::records(&safe.stdout)[2][4], "-0.1", "a number is not escaped");
}

#[tokio::test(flavor = "multi_thread")]
async fn rows_are_selected_by_limit_and_key_and_can_go_to_a_file() {
    let database = Database::migrated().await;
    database.execute(ROWS).await;
    let count = |args: &[&str]| objects(&export(&database, args)).len();
    assert_eq!(count(&["--limit", "s"]), 2);
    assert_eq!(count(&["--limit", "w", "--limit", "a", "--limit", "w"]), 5);
    assert_eq!(count(&["--key", "u1"]), 4);
    assert_eq!(count(&["--key", "u1", "--limit", "a"]), 1);
    assert_eq!(count(&["--limit", "nobody"]), 0);
    assert_eq!(count(&["--key", ""]), 1);
    let (_dir, path) = files(&[("rows.csv", "what was there before, and is longer than what comes\n")]);
    let file = path("rows.csv");
    export(&database, &["--format", "csv", "--limit", "nobody", "--output", &file]).says(0, "");
    let text = fs::read_to_string(&file).expect("the file");
    assert_eq!(text, "name,key,shard,shards,value,ts,idle_at,detail,ts_time,idle_at_time\n");
    export(&database, &["--output", &path("no/such")]).refuses(2, &["cannot write", "no/such"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn balances_match_peek() {
    let database = Database::migrated().await;
    let limits = r#"
        [limits.a]
        kind = "token_bucket"
        rate = 10
        period = "36525days"
        [limits.s]
        kind = "token_bucket"
        rate = 10
        period = "36525days"
        shards = 2
        [limits.w]
        kind = "sliding_window"
        rate = 10
        period = "36525days"
        start = "0s"
    "#;
    let (_dir, path) = files(&[("limits.toml", limits)]);
    let limits = path("limits.toml");
    for (name, count) in [("a", "3"), ("s", "7"), ("w", "4")] {
        let taken = run(Some(&database.url), &["limit", name, "u1", "--limits", &limits, "--count", count], "");
        assert_eq!(taken.code, Some(0), "{}", taken.stderr);
    }
    database
        .execute("INSERT INTO rate_limit.rate_limits (name, key, value, ts, idle_at) VALUES ('unknown', 'u1', 1, 0, 0)")
        .await;
    let before: String = rows(&database).await;
    let exported = objects(&export(&database, &["--limits", &limits]));
    for row in &exported {
        let name = row["name"].as_str().expect("a name");
        if name == "unknown" || row["shard"] == 1 {
            assert_eq!(row["balance"], Value::Null, "{row}");
            continue;
        }
        let peek = run(Some(&database.url), &["peek", name, "u1", "--limits", &limits, "--json"], "");
        let peek: Value = serde_json::from_str(&peek.stdout).expect("JSON");
        let [now, then] = [&peek["value"], &row["balance"]].map(|value| value.as_f64().expect("a number"));
        assert!((now - then).abs() < 1e-5, "{name}: {now} and {then}");
    }
    assert_eq!(exported.iter().filter(|row| row["balance"].is_number()).count(), 3);
    assert_eq!(rows(&database).await, before, "nothing is written");
    let csv = export(&database, &["--limits", &limits, "--format", "csv"]);
    assert_eq!(records(&csv.stdout)[0].last().map(String::as_str), Some("balance"));
}

async fn rows(database: &Database) -> String {
    let sql = "SELECT string_agg(concat_ws(' ', r, xmin, xmax), ',' ORDER BY name, key, shard) FROM rate_limit.rate_limits AS r";
    sqlx::query_scalar(sql).fetch_one(&database.pool).await.expect("the rows")
}

#[tokio::test(flavor = "multi_thread")]
async fn many_rows_are_exported_in_order_and_output_may_be_closed_early() {
    let database = Database::migrated().await;
    database
        .execute(
            "INSERT INTO rate_limit.rate_limits (name, key, value, ts, idle_at) \
             SELECT 'n' || n % 3, 'k' || n, n, 0, 0 FROM generate_series(1, 25001) AS n",
        )
        .await;
    let rows = objects(&export(&database, &[]));
    assert_eq!(rows.len(), 25_001);
    let keys: Vec<(&str, &str)> =
        rows.iter().map(|row| (row["name"].as_str().unwrap(), row["key"].as_str().unwrap())).collect();
    assert!(keys.windows(2).all(|pair| pair[0] < pair[1]), "each once");
    assert_eq!(rows.iter().filter_map(|row| row["value"].as_f64()).sum::<f64>(), 25_001.0 * 25_002.0 / 2.0);
    assert_eq!(objects(&export(&database, &["--limit", "n1"])).len(), 8_334);
    for format in ["json", "csv"] {
        ends_well_if_nobody_reads(&database.url, &["export", "--format", format]);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn missing_objects_and_rights_are_reported() {
    run(None, &["export"], "").refuses(2, &["--database-url"]);
    for format in [&[][..], &["--format", "json"]] {
        let no_formulas = [&["export", "--no-formulas"], format].concat();
        run(None, &no_formulas, "").refuses(2, &["--no-formulas applies only to --format csv"]);
    }
    let database = Database::empty().await;
    let (_dir, path) = files(&[("rows.json", "of yesterday")]);
    let file = path("rows.json");
    for to in [&[][..], &["--output", &file]] {
        export(&database, to).refuses(3, &["\"rate_limit\"", "pg-limiter migrate"]);
    }
    assert_eq!(fs::read_to_string(&file).expect("the file"), "of yesterday");
    let database = Database::migrated().await;
    database.execute(ROWS).await;
    let role = Role::new(&database).await;
    let url = role.url.clone();
    run(Some(&url), &["export"], "").refuses(3, &["permission denied", "GRANT SELECT ON \"rate_limit\".rate_limits"]);
    role.gets("GRANT USAGE ON SCHEMA rate_limit TO app_role; GRANT SELECT ON rate_limit.rate_limits TO app_role").await;
    assert_eq!(run(Some(&url), &["export"], "").stdout.lines().count(), 7);
    let (_dir, path) = files(&[("limits.toml", "[limits.a]\nkind = \"token_bucket\"\nrate = 1\nperiod = \"1s\"\n")]);
    let limits = path("limits.toml");
    run(Some(&url), &["export", "--limits", &limits], "").refuses(3, &["permission denied", "_decide"]);
    role.gets("GRANT EXECUTE ON FUNCTION rate_limit._decide TO app_role").await;
    assert_eq!(run(Some(&url), &["export", "--limits", &limits], "").code, Some(0));
    role.drop().await;
}

/// They are meant for the application, and `export` and `replay` read as fast as their output is taken.
#[tokio::test(flavor = "multi_thread")]
async fn no_time_out_of_the_role_ends_a_long_transaction() {
    let database = Database::migrated().await;
    database.execute(
        "INSERT INTO rate_limit.rate_limits (name, key, value, ts, idle_at) SELECT 'a', i::text, 1, 0, 0 FROM generate_series(1, 9999) AS i",
    ).await;
    let role = Role::new(&database).await;
    role.gets("GRANT USAGE ON SCHEMA rate_limit TO app_role; GRANT SELECT ON rate_limit.rate_limits TO app_role").await;
    // Less than the pause between two statements, and less than all of them take.
    for (timeout, since) in
        [("idle_in_transaction_session_timeout = '1ms'", 0), ("transaction_timeout = '40ms'", 170_000)]
    {
        if version(&database.pool).await >= since {
            role.gets(&format!("ALTER ROLE app_role RESET ALL; ALTER ROLE app_role SET {timeout}")).await;
            let exported = run(Some(&role.url), &["export"], "");
            assert_eq!(
                (exported.code, exported.stdout.lines().count()),
                (Some(0), 9999),
                "{timeout}: {}",
                exported.stderr
            );
            let replayed = replay(Some(&role.url), "events.jsonl", EVENT.repeat(5000).as_bytes(), &["--json"]);
            assert_eq!(replayed.code, Some(0), "{timeout}: {}", replayed.stderr);
        }
    }
    role.drop().await;
}
