//! The rows that the files for psql return: through the driver, and through psql.

use std::process::Command;

use pg_limiter::sqlx::postgres::PgValueRef;
use sqlx::{AssertSqlSafe, PgPool, Row, ValueRef};

use crate::common::BoxError;
use crate::{outcome_of, server_url};

/// The rows of all SELECTs of a file. NULL is an empty text.
type Rows = Vec<Vec<String>>;

async fn rows_of(file: &'static str) -> Rows {
    outcome_of(async |pool: &PgPool| rows_in(pool, &path_of(file)).await).await
}

fn path_of(file: &str) -> String {
    format!("{}/examples/sql/{file}", env!("CARGO_MANIFEST_DIR"))
}

async fn rows_in(pool: &PgPool, path: &str) -> Result<Rows, BoxError> {
    let text = std::fs::read_to_string(path)?;
    let mut rows = Rows::new();
    for row in sqlx::raw_sql(AssertSqlSafe(text)).fetch_all(pool).await? {
        let texts = (0..row.len()).map(|nth| text_of(row.try_get_raw(nth)?)).collect::<Result<Vec<_>, BoxError>>()?;
        rows.push(texts);
    }
    let left: i64 = sqlx::query_scalar("SELECT count(*) FROM rate_limit.rate_limits").fetch_one(pool).await?;
    assert_eq!(left, 0, "{path} leaves something behind");
    Ok(rows)
}

fn text_of(value: PgValueRef<'_>) -> Result<String, BoxError> {
    Ok(if value.is_null() { String::new() } else { value.as_str()?.to_owned() })
}

/// Times and balances differ from run to run, and a very small balance has an exponent.
fn without_digits(line: &str) -> String {
    line.replace("e-", "").chars().filter(|c| !c.is_ascii_digit()).collect()
}

#[tokio::test]
#[ignore = "needs psql: run tests/machine"]
async fn psql_prints_the_rows_that_a_driver_returns() {
    for file in ["postgrest.sql", "psql.sql", "row_level_security.sql", "trigger.sql"] {
        outcome_of(async |pool: &PgPool| {
            let path = path_of(file);
            let rows = rows_in(pool, &path).await?;
            let options = pool.connect_options();
            let output = by_psql(&path, options.get_database().ok_or("a database")?)?;
            let lines: Vec<String> = rows.iter().map(|row| without_digits(&row.join("|"))).collect();
            let printed: Vec<String> = output.lines().map(without_digits).collect();
            assert_eq!(printed, lines, "{file}");
            Ok(())
        })
        .await;
    }
}

/// The output of psql, run with the command in the first lines of each file.
fn by_psql(path: &str, database: &str) -> Result<String, BoxError> {
    let mut psql = Command::new("psql");
    psql.args(["-v", "ON_ERROR_STOP=1", "-X", "-q", "-A", "-t", "-d", &server_url()]);
    psql.args(["-c", &format!("\\connect {database}"), "-f", path]);
    let output = psql.output().map_err(|error| format!("psql: {error}: apt-get install postgresql-client"))?;
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{path}: {errors}");
    Ok(String::from_utf8(output.stdout)?)
}

/// The row that begins with this.
fn row<'a>(rows: &'a Rows, what: &str) -> &'a [String] {
    rows.iter().find(|row| row[0] == what).map_or_else(|| panic!("no {what:?} in {rows:#?}"), |row| &row[1..])
}

/// The seconds of a denial's DETAIL.
fn retry_after(detail: &str) -> f64 {
    let seconds = detail.strip_prefix("Retry after ").and_then(|rest| rest.strip_suffix(" seconds."));
    seconds.and_then(|seconds| seconds.parse().ok()).unwrap_or_else(|| panic!("{detail:?}"))
}

/// That it was refused with SQLSTATE RL429, and a time of at most so many seconds.
fn assert_refused(row: &[String], limit: &str, seconds: f64) {
    assert_eq!(row[0], format!("RL429 rate limit \"{limit}\" exceeded"));
    let after = retry_after(&row[1]);
    assert!(after > 0.0 && after <= seconds, "{row:?}");
}

#[tokio::test]
async fn a_trigger_rejects_rows_over_the_limit_and_counts_written_rows() {
    let rows = rows_of("trigger.sql").await;
    assert_eq!(row(&rows, "three posts")[0], "done");
    assert_refused(row(&rows, "a third post by ann, and one by bob"), "posts", 1800.0);
    assert_eq!(row(&rows, "the post by bob alone: his token was rolled back")[0], "done");
    assert_eq!(row(&rows, "a post by ann that exists already")[0], "done");
    assert_eq!(row(&rows, "90 events")[0], "done");
    assert_refused(row(&rows, "90 more events"), "events", 48.0);
    let never = &row(&rows, "more events than the capacity")[0];
    assert!(never.starts_with("22023 count_exceeds_capacity"), "{never}");
    assert_eq!(row(&rows, "two messages by ann")[0], "done");
    let exceeded = |what: &str, limit: &str, seconds: f64| {
        let row = row(&rows, what);
        assert_eq!(row[0], format!("RL429 rate limit exceeded: {limit}"));
        let after = retry_after(&row[1]);
        assert!(after > 0.0 && after <= seconds, "{row:?}");
    };
    exceeded("a third message by ann", "author", 1800.0);
    assert_eq!(row(&rows, "one by bob in the same team")[0], "done");
    exceeded("another by bob, which exceeds the limit of the team", "team", 1200.0);
    assert_eq!(row(&rows, "the same in another team: bob was not charged")[0], "done");
    assert_eq!(row(&rows, "messages"), ["4"]);
    for by_hand in ["a reset", "a direct change to a bucket"] {
        assert!(row(&rows, by_hand)[0].starts_with("42501 permission denied"), "{by_hand}");
    }
    assert_eq!(row(&rows, "posts by ann"), ["2"]);
    assert_eq!(row(&rows, "posts by bob"), ["2"]);
    assert_eq!(row(&rows, "events"), ["90"]);
}

#[tokio::test]
async fn a_policy_rejects_rows_over_the_limit() {
    let rows = rows_of("row_level_security.sql").await;
    assert_refused(row(&rows, "four posts in one statement: three are allowed"), "posts", 1200.0);
    assert_eq!(row(&rows, "two of them: the denied statement was not charged")[0], "done");
    let other = &row(&rows, "a post as bob")[0];
    assert!(other.starts_with("42501 new row violates row-level security policy"), "{other}");
    assert_eq!(row(&rows, "a post that exists already: the policy counts it")[0], "done");
    assert_refused(row(&rows, "one more: no token is left"), "posts", 1200.0);
    let by_hand = &row(&rows, "a direct call to the limiter")[0];
    assert!(by_hand.starts_with("42501 permission denied"), "{by_hand}");
    assert_eq!(row(&rows, "a post by bob: each user has a separate bucket")[0], "done");
    assert_refused(row(&rows, "three posts by the owner, as bob"), "posts", 1200.0);
    assert_eq!(row(&rows, "posts by ann"), ["2"]);
    assert_eq!(row(&rows, "posts by bob"), ["1"]);
}

/// A policy as the file warns of: `(SELECT ..)` around the call makes it one a statement.
#[tokio::test]
async fn a_policy_with_a_subselect_is_evaluated_once_per_statement() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/examples/sql/row_level_security.sql");
    let text = std::fs::read_to_string(path)
        .expect("the file")
        .replace("WITH CHECK (app.may_post())", "WITH CHECK ((SELECT app.may_post()))");
    let rows = outcome_of(async |pool: &PgPool| {
        let rows = sqlx::raw_sql(AssertSqlSafe(text)).fetch_all(pool).await?;
        rows.iter().map(|row| text_of(row.try_get_raw(1)?)).collect::<Result<Vec<_>, _>>()
    })
    .await;
    assert_eq!(rows[0], "done", "four posts in one statement");
}

#[tokio::test]
async fn behind_postgrest_a_denial_is_a_429_with_retry_after() {
    let rows = rows_of("postgrest.sql").await;
    let status = |what: &str| row(&rows, what)[0].clone();
    let refused = |what: &str, limit: &str, seconds: u32| {
        let row = row(&rows, what);
        let after: u32 = row[1].parse().unwrap_or_else(|_| panic!("{row:?}"));
        assert!(row[0] == "429" && (1..=seconds).contains(&after), "{row:?}");
        let body: serde_json::Value = serde_json::from_str(&row[2]).expect("JSON");
        assert_eq!(body["code"], "RL429");
        assert_eq!(body["message"], format!("rate limit \"{limit}\" exceeded"));
        assert_eq!(body["details"], format!("Retry after {after} seconds."));
        assert!(body["hint"].is_string(), "{body}");
    };
    assert_eq!(row(&rows, "ann sends a message"), ["200", "", "sent, 1 left"]);
    assert_eq!(status("an empty message: invalid, and not charged"), "400");
    assert_eq!(row(&rows, "a second message"), ["200", "", "sent, 0 left"]);
    refused("a third message", "messages", 1800);
    assert_eq!(row(&rows, "bob sends a message"), ["200", "", "sent, 1 left"]);
    assert_eq!(status("a client that is not signed in"), "401");
    assert_eq!(row(&rows, "ann reads"), ["200", "", "3"]);
    assert_eq!(status("a search by GET"), "405");
    assert_eq!(row(&rows, "a search by POST"), ["200", "", "2"]);
    assert_eq!(status("a second search"), "200");
    refused("a third search, with a forged address", "searches", 1800);
    let rest: Vec<_> = rows.iter().filter(|row| row[0] == "the rest of the six requests by ann").collect();
    assert_eq!(rest.len(), 4);
    assert!(rest.iter().all(|row| row[1] == "200"), "{rest:?}");
    refused("one more request by ann", "requests", 600);
    refused("a read by ann", "requests", 600);
    assert_eq!(status("a direct call to the limiter"), "403");

    assert_eq!(row(&rows, "messages by user ann"), ["2"]);
    assert_eq!(row(&rows, "messages by user bob"), ["1"]);
    for (bucket, left) in [
        ("user ann: messages", "0"),
        ("user bob: messages", "1"),
        ("address 192.0.2.1: requests", "4"),
        ("user ann: requests", "0"),
        ("user bob: requests", "5"),
        ("address 192.0.2.1: searches", "0"),
    ] {
        assert_eq!(row(&rows, bucket), [left], "{bucket}");
    }
}

#[tokio::test]
async fn from_plain_sql_every_operation_is_a_row() {
    let rows = rows_of("psql.sql").await;
    let texts: Vec<Vec<&str>> = rows.iter().map(|row| row.iter().map(String::as_str).collect()).collect();
    assert_eq!(texts[0], ["t", "", "1"]);
    assert_eq!(texts[1][..2], ["t", ""]);
    assert_eq!(texts[2][0], "f");
    assert!(texts[2][1].starts_with("00:0"), "{:?}", texts[2]);
    assert_eq!(texts[3][0], "f");
    assert_eq!(texts[4], ["0"]);
    assert_eq!(texts[5], ["1"]);
    assert_eq!(texts[6], ["t", "0"]);
    assert_eq!(texts[7], ["t", "", "0"]);
    assert_eq!(texts[8], ["t", "t", "-1"]);
    assert_eq!(texts[9], ["t", ""]);
    assert_eq!(texts[10], ["f", "22:00:00"]);
    assert_eq!(texts[11], ["t", ""]);
    assert_eq!(texts[12], ["t", "", "{}", "2"]);
    assert_eq!(texts[13], ["f", "t", "{per_team}", "per_user", "false"]);
    assert_eq!(texts[14], ["f", "t", "{per_team}", "per_team", "true"]);
    assert_eq!(texts[15], ["t", "4711"]);
    assert_eq!([&texts[16], &texts[17]], [&["t"], &["t"]]);
    assert_eq!(texts[18], ["01:00:00"]);
    assert_eq!(texts[19], ["f", "{banned}"]);
    assert_eq!(texts[20], ["t"]);
    assert_eq!(texts[21], ["t", ""]);
    assert_eq!(texts[22], ["f", "36:00:00"]);
    assert_eq!(texts[23], ["0"]);
    let buckets: Vec<_> = texts[24..].iter().map(|row| &row[..3]).collect();
    assert_eq!(
        buckets,
        [
            ["deploy", "shop", "0"],
            ["mails", "ann", "-1"],
            ["per_team", "red", "1"],
            ["per_user", "bob", "9"],
            ["quota", "ann", "0"],
            ["report", "ann", "0"],
            ["running", "ann", "0"],
            ["starts", "ann", "9"]
        ]
    );
}
