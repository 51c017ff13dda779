//! Settings of the database that an administrator made for other statements: the tool works with them, or reports an error
//! that names them.

use crate::binary::run;
use crate::support::settings::{TIME_LIMITS, TRANSACTION_DEFAULTS, database_with};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn settings_of_the_database_do_not_stop_migrate() {
    for settings in TIME_LIMITS.iter().map(std::slice::from_ref).chain(TRANSACTION_DEFAULTS) {
        let (database, _pool) = database_with(settings).await;
        let run = run(Some(&database.url), &["migrate", "--schema", "third"], "");
        assert_eq!(run.code, Some(0), "{settings:?}: {}{}", run.stdout, run.stderr);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_read_only_database_fails_with_the_name_of_the_setting() {
    let (database, _pool) = database_with(&["default_transaction_read_only = on"]).await;
    let set = ["--kind", "token_bucket", "--rate", "10", "--period", "1m"];
    let run = run(Some(&database.url), &[&["limit", "a", "k"][..], &set].concat(), "");
    let output = format!("{}{}", run.stdout, run.stderr);
    assert!(run.code != Some(0) && output.contains("default_transaction_read_only is on"), "{output}");
}
