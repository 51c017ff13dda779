//! `migrate` and `doctor` report a schema that was changed by hand or by a newer release.

use crate::binary::run;
use crate::support::Database;

#[tokio::test(flavor = "multi_thread")]
async fn a_function_changed_by_hand_is_reported() {
    let database = Database::migrated().await;
    run(Some(&database.url), &["migrate", "--check"], "").says(0, "schema \"rate_limit\" matches this release");

    let changed =
        "CREATE OR REPLACE FUNCTION rate_limit._clock() RETURNS bigint LANGUAGE sql VOLATILE AS 'SELECT 0::bigint'";
    database.execute(changed).await;
    let checked = run(Some(&database.url), &["migrate", "--check"], "");
    assert_eq!((checked.code, checked.stdout.trim()), (Some(1), "the function _clock() was changed by hand"));
    let doctor = run(Some(&database.url), &["doctor"], "");
    assert!(doctor.stdout.contains("_clock() was changed by hand"), "{}", doctor.stdout);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_test_clock_is_reported_and_removed() {
    let database = Database::migrated().await;
    database.execute("CREATE SEQUENCE rate_limit._test_clock MINVALUE 0").await;
    database.execute(include_str!("../../../sql/tests/test_clock.sql")).await;
    database.execute("SELECT setval('rate_limit._test_clock', 7200000000)").await;
    let doctor = run(Some(&database.url), &["doctor"], "");
    assert_eq!(doctor.code, Some(1), "{}", doctor.stderr);
    for line in ["problem  test clock", "problem  functions"] {
        assert!(doctor.stdout.contains(line), "{}", doctor.stdout);
    }
    assert!(doctor.stdout.contains("a test clock is installed, 2.0 h ahead"), "{}", doctor.stdout);
    let checked = run(Some(&database.url), &["migrate", "--check"], "");
    assert_eq!(checked.code, Some(1));
    assert!(
        checked.stdout.contains("a test clock is installed") && !checked.stdout.contains("by hand"),
        "{}",
        checked.stdout
    );
    let migrated = run(Some(&database.url), &["migrate"], "");
    assert_eq!(migrated.code, Some(0), "{}", migrated.stderr);
    assert!(migrated.stdout.contains("a test clock is installed"), "{}", migrated.stdout);
    run(Some(&database.url), &["migrate", "--check"], "").says(0, "schema \"rate_limit\" matches this release");
    let doctor = run(Some(&database.url), &["doctor"], "");
    assert!(!doctor.stdout.contains("test clock"), "{}", doctor.stdout);
}

#[tokio::test]
async fn migrate_rejects_a_schema_that_a_newer_release_has_broken() {
    let database = Database::migrated().await;
    database.execute("INSERT INTO rate_limit.migrations VALUES (99, 'later', '', '99.0.0', true)").await;
    let refused = run(Some(&database.url), &["migrate"], "");
    assert_eq!(refused.code, Some(3), "{}", refused.stderr);
}
