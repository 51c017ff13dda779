//! `migrate` and `doctor` report a schema that was changed by hand or by a newer release.

use crate::binary::run;
use crate::support::Database;

#[tokio::test(flavor = "multi_thread")]
async fn a_function_changed_by_hand_is_reported() {
    let database = Database::migrated().await;
    run(Some(&database.url), &["migrate", "--check"], "").says(0, "schema \"public\" matches this release");

    let changed = "CREATE OR REPLACE FUNCTION public.rate_limit_clock() RETURNS bigint LANGUAGE sql VOLATILE AS 'SELECT 0::bigint'";
    database.execute(changed).await;
    let checked = run(Some(&database.url), &["migrate", "--check"], "");
    assert_eq!((checked.code, checked.stdout.trim()), (Some(1), "the function rate_limit_clock() was changed by hand"));
    let doctor = run(Some(&database.url), &["doctor"], "");
    assert!(doctor.stdout.contains("rate_limit_clock() was changed by hand"), "{}", doctor.stdout);
}

#[tokio::test]
async fn migrate_rejects_a_schema_that_a_newer_release_has_broken() {
    let database = Database::migrated().await;
    database.execute("INSERT INTO rate_limits_migrations (version, name, breaking) VALUES (99, 'later', true)").await;
    let refused = run(Some(&database.url), &["migrate"], "");
    assert_eq!(refused.code, Some(3), "{}", refused.stderr);
}
