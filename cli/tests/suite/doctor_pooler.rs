//! `pg-limiter doctor` through pgbouncer.

use crate::doctor::examine;
use crate::support::Database;
use crate::support::pooler::{Pooler, Settings};

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs pgbouncer: run tests/pooler"]
async fn a_transaction_pooler_is_recognised() {
    let database = Database::migrated().await;
    let transaction = ["in transaction mode", "Connections::Pool", "pgbouncer 1.21 or newer", "named_statements"];

    let strict = Pooler::start(&database.url, 4, Settings::AllRefused);
    let refused = ["extra_float_digits", "08P01", "ignore_startup_parameters"];
    let found = examine(&strict.url(&database.url));
    found.has("pooler", "note", &transaction).has("start-up settings", "problem", &refused).has("schema", "ok", &[]);
    assert_eq!(found.code, Some(1));

    let usual = Pooler::start(&database.url, 4, Settings::Refused);
    let refused = ["a pooler refuses them", "options", "Connections::Pool"];
    examine(&usual.url(&database.url))
        .has("pooler", "note", &transaction)
        .has("start-up settings", "note", &refused)
        .has("isolation", "ok", &[])
        .has("old transactions", "ok", &[])
        .has("jobs", "ok", &[]);

    let silent = Pooler::start(&database.url, 4, Settings::Ignored);
    examine(&silent.url(&database.url)).has("pooler", "note", &transaction).has(
        "start-up settings",
        "warning",
        &["silently ignores", "Connections::Pool"],
    );

    let session = Pooler::start_in("session", &database.url, 4, Settings::Refused);
    examine(&session.url(&database.url)).has("pooler", "ok", &["none in transaction mode"]).has(
        "start-up settings",
        "note",
        &refused,
    );
}
