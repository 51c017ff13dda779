//! `pg-limiter doctor` finds problems, reports what is in order, and changes nothing.

use std::collections::BTreeMap;
use std::time::Duration;

use pg_limiter::embedded::{Server, ServerConfig};
use pg_limiter::migrate::Use;
use pg_limiter::queue::{Job, Queue};
use pg_limiter::sqlx::{self, AssertSqlSafe, PgPool};
use pg_limiter::{Limit, Limits, Schema};
use serde_json::Value;

use crate::binary::{Run, run};
use crate::support::Database;
use crate::support::gate::limiter;
use crate::support::guide::grants;
use crate::support::scheduled;

/// The findings, by check.
pub struct Findings {
    pub code: Option<i32>,
    pub by_check: BTreeMap<String, Value>,
}

fn doctor(url: &str, args: &[&str]) -> Run {
    run(Some(url), &[&["doctor"], args].concat(), "")
}

pub fn examine_with(url: &str, args: &[&str]) -> Findings {
    let run = doctor(url, &[&["--json"], args].concat());
    assert_eq!(run.stderr, "", "{}", run.stdout);
    let objects: Vec<Value> = serde_json::from_str(&run.stdout).expect("JSON");
    let check = |object: &Value| object["check"].as_str().expect("a check").to_owned();
    Findings { code: run.code, by_check: objects.into_iter().map(|object| (check(&object), object)).collect() }
}

pub fn examine(url: &str) -> Findings {
    examine_with(url, &[])
}

impl Findings {
    /// Asserts that this check has this state, and that its finding or advice contains all of these words.
    #[track_caller]
    pub fn has(&self, check: &str, state: &str, words: &[&str]) -> &Self {
        let finding = self.by_check.get(check).unwrap_or_else(|| panic!("no {check} in {:?}", self.by_check));
        assert_eq!(finding["state"], state, "{finding}");
        let text =
            format!("{}\n{}", finding["found"].as_str().expect("a text"), finding["advice"].as_str().unwrap_or(""));
        for word in words {
            assert!(text.contains(word), "no {word:?} in: {text}");
        }
        // A finding that needs action has advice.
        assert!(finding["advice"].is_string() || ["ok", "note"].contains(&state), "{finding}");
        self
    }
}

/// A role that may only connect, with its URL.
pub struct Role<'d> {
    database: &'d Database,
    name: String,
    pub url: String,
}

impl<'d> Role<'d> {
    pub async fn new(database: &'d Database) -> Self {
        let name = format!("app_of_{}", database.name);
        database.execute(&format!("DROP ROLE IF EXISTS {name}; CREATE ROLE {name} LOGIN PASSWORD 'of-a-test'")).await;
        let (_, place) = database.url.split_once('@').expect("a URL with a user");
        Self { database, url: format!("postgres://{name}:of-a-test@{place}"), name }
    }

    pub async fn gets(&self, sql: &str) {
        self.database.execute(&sql.replace("app_role", &self.name)).await;
    }

    /// Waits until its last session has ended, which takes a moment after the client has disconnected.
    async fn alone(&self) {
        let sessions = "SELECT count(*) FROM pg_stat_activity WHERE usename = $1";
        let mut others = 1_i64;
        while others > 0 {
            let count = sqlx::query_scalar(sessions).bind(&self.name);
            others = count.fetch_one(&self.database.pool).await.expect("a count");
        }
    }

    pub async fn drop(self) {
        self.gets("DROP OWNED BY app_role; DROP ROLE app_role").await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_granted_role_on_a_durable_server_has_no_problems() {
    // Not the tests' server, which does not wait for the disk.
    let server = tokio::task::spawn_blocking(|| {
        let mut config = ServerConfig::default();
        config.version = std::env::var("PG_LIMITER_TEST_VERSION").ok();
        Server::start(&config).unwrap_or_else(|error| panic!("{error}"))
    });
    let server = server.await.expect("a server");
    let url = server.url("postgres");
    let pool = Database::pool(&url, 1).await;
    pg_limiter::migrate::migrate(&pool).await.expect("migrate");
    let sql = format!(
        "CREATE ROLE app_role LOGIN; {} GRANT SELECT ON rate_limit.rate_limits TO app_role",
        [Use::App, Use::Sql, Use::Trigger, Use::Worker].map(grants).concat()
    );
    sqlx::raw_sql(AssertSqlSafe(sql)).execute(&pool).await.expect("a role");
    let url = url.replace("postgres@", "app_role@");
    let found = examine(&url);
    let version = format!("PostgreSQL {}", server.version());
    let functions = pg_limiter::migrate::functions(&Schema::default(), pg_limiter::migrate::Part::ALL).len();
    let supported = version.as_str() >= "PostgreSQL 13";
    found
        .has("engine", if supported { "ok" } else { "warning" }, &[&version])
        .has("encryption", "ok", &["not encrypted", "this machine"])
        .has("isolation", "ok", &[])
        .has("clock", "ok", &[" s "])
        .has("durability", "ok", &["synchronous_commit=on", "fsync=on", "full_page_writes=on"])
        .has("writing", "ok", &["a primary"])
        .has("schema", "ok", &["version 1, the newest"])
        .has("functions", "ok", &[&format!("all {functions}")])
        .has("grants", "ok", &["may: app, sql, trigger, worker; may not: reader, operator"])
        .has("tables by hand", "note", &["may read rate_limit.rate_limits"])
        .has("table", "ok", &["rate_limit.rate_limits has "])
        .has("autovacuum", "ok", &[])
        .has("updates", "ok", &["fillfactor 70"])
        .has("idle rows", "ok", &["0 of 0 rows"])
        .has("old transactions", "ok", &["5m"])
        // The queue's grants include no right to read.
        .has("jobs", "note", &["not checked", "jobs", "42501", "owner"])
        .has("table of jobs", "ok", &[])
        .has("connections", "ok", &["connections of the server are in use"])
        .has("time-outs", "note", &["none is set", "idle_in_transaction_session_timeout"])
        .has("locks", "ok", &["max_pred_locks_per_transaction=64"])
        .has("pooler", "ok", &["none"])
        .has("start-up settings", "ok", &["they arrive"]);
    assert_eq!(found.code, Some(i32::from(!supported)));
    // The same as text.
    let text = doctor(&url, &[]);
    assert_eq!(text.code, found.code, "{}", text.stderr);
    assert!(
        text.stdout
            .contains(&format!("\nok       functions          all {functions} functions are those of this release\n")),
        "{}",
        text.stdout
    );
    assert!(text.stdout.contains("\nnote     time-outs          none is set\n         A client"), "{}", text.stdout);
    assert!(text.stdout.contains("\n\n0 problems, ") && text.stdout.ends_with(" notes\n"), "{}", text.stdout);
    assert!(!text.stdout.contains('\u{1b}'), "no colours but on a terminal");
    let tserver = examine_with(&url, &["--tserver", "yb-1:9000"]);
    tserver.has("tserver flags", "note", &["only YugabyteDB"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_doctor_without_a_reachable_database_fails() {
    run(None, &["doctor"], "").refuses(2, &["no database given", "--database-url"]);
    doctor("postgres://nobody@127.0.0.1:1/none", &[]).refuses(3, &["cannot connect"]);
    doctor("postgres://nobody@127.0.0.1:1/none", &["--schema", "a$b"]).refuses(2, &["schema"]);
    let wrong = doctor("postgres://nobody@127.0.0.1:1/none", &["--tserver", "::1:9000"]);
    assert_eq!((wrong.code, wrong.stdout.as_str()), (Some(2), ""));
    assert!(wrong.stderr.contains("HOST:PORT"), "{}", wrong.stderr);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_missing_or_incomplete_schema_is_a_problem() {
    let database = Database::empty().await;
    let found = examine(&database.url);
    found.has("schema", "problem", &["\"rate_limit\"", "pg-limiter migrate"]);
    assert_eq!(found.code, Some(1));
    assert!(!found.by_check.contains_key("grants"), "there is nothing to grant");

    pg_limiter::migrate::migrate(&database.pool).await.expect("migrate");
    examine(&database.url).has("schema", "ok", &[]).has("functions", "ok", &[]);
    examine_with(&database.url, &["--schema", "o'ther\\ \"one\""]).has(
        "schema",
        "problem",
        &["o'ther\\ \"one\"", "--schema 'o'\\''ther\\ \"one\"'"],
    );

    database.execute("DROP FUNCTION rate_limit.prune, rate_limit.reset(text)").await;
    let missing = ["function prune(", "reset(text) is missing", "Run pg-limiter migrate"];
    assert_eq!(examine(&database.url).has("functions", "problem", &missing).code, Some(1));
    // The advice helps.
    run(Some(&database.url), &["migrate"], "").says(0, "schema \"rate_limit\" is at version 1: updated 2 functions");
    examine(&database.url).has("functions", "ok", &[]);

    // As the event triggers of some hosts do.
    database.execute("ALTER TABLE rate_limit.rate_limits ENABLE ROW LEVEL SECURITY").await;
    examine(&database.url).has("tables", "problem", &["rate_limits", "ALTER TABLE", "DISABLE ROW LEVEL SECURITY"]);
    database.execute("ALTER TABLE rate_limit.rate_limits DISABLE ROW LEVEL SECURITY").await;

    database.execute("CREATE TABLE archive () INHERITS (rate_limit.rate_limits)").await;
    examine(&database.url).has(
        "tables",
        "problem",
        &["rate_limits is table with the child public.archive", "NO INHERIT"],
    );
    database.execute("DROP TABLE archive").await;

    // As after a restore of the table alone.
    let (constraint, missing) =
        ("rate_limit.rate_limits DROP CONSTRAINT rate_limits_pkey", "rate_limits_pkey is missing");
    database.execute(&format!("ALTER TABLE {constraint}")).await;
    let found = examine(&database.url);
    found.has("tables", "problem", &[missing, "pg_restore", "migrate --print"]);
    assert!(!found.by_check["tables"].to_string().contains("SET LOGGED"), "{:?}", found.by_check);
    for records in ["", "TRUNCATE rate_limit.migrations, rate_limit.objects"] {
        database.execute(records).await;
        let migrated = run(Some(&database.url), &["migrate"], "");
        assert_eq!(migrated.code, Some(3), "{}", migrated.stdout);
        assert!(migrated.stderr.contains(missing) && migrated.stderr.contains("by hand"), "{}", migrated.stderr);
    }
    let key = "ALTER TABLE rate_limit.rate_limits ADD CONSTRAINT rate_limits_pkey PRIMARY KEY (name, key, shard)";
    database.execute(key).await;
    run(Some(&database.url), &["migrate"], "").says(0, "schema \"rate_limit\" is at version 1: nothing to do");

    database.execute("UPDATE rate_limit.migrations SET version = 0").await;
    examine(&database.url).has("schema", "warning", &["version 0", "the newest is 1", "pg-limiter migrate"]);
    database.execute("UPDATE rate_limit.migrations SET version = 1").await;
    database.execute("INSERT INTO rate_limit.migrations VALUES (99, 'later', '', '99.0.0')").await;
    examine(&database.url).has("schema", "note", &["version 99", "up to 1", "Update"]).has("functions", "ok", &[]);
    database.execute("DROP TABLE rate_limit.migrations").await;
    examine(&database.url).has("schema", "note", &["printed SQL"]).has("functions", "ok", &[]);
}

#[tokio::test(flavor = "multi_thread")]
async fn missing_and_excess_rights_are_reported() {
    let database = Database::migrated().await;
    let role = Role::new(&database).await;
    role.gets("REVOKE ALL ON SCHEMA rate_limit FROM PUBLIC").await;
    examine(&database.url).has("grants", "note", &["superuser"]).has("tables by hand", "note", &["superuser"]);
    let name = role.name.as_str();
    let grant = format!("GRANT USAGE ON SCHEMA \"rate_limit\" TO \"{name}\"");
    let found = examine(&role.url);
    found
        .has(
            "grants",
            "problem",
            &["may not use the schema", &grant, "may call no function", "pg-limiter grants --for app"],
        )
        .has("tables by hand", "ok", &["neither read nor change"])
        .has("schema", "note", &["not checked", "42501"])
        .has("functions", "note", &["not checked", "42501"])
        .has("table", "ok", &[])
        .has("idle rows", "note", &["not checked", "42501"]);
    assert_eq!(found.code, Some(1));

    role.gets(&grants(Use::App)).await;
    examine(&role.url).has("schema", "ok", &[]).has(
        "grants",
        "ok",
        &["may: app; may not: sql, trigger, worker, reader, operator"],
    );
    for of in [Use::Sql, Use::Trigger, Use::Worker] {
        role.gets(&grants(of)).await;
    }
    examine(&role.url).has("grants", "ok", &["may: app, sql, trigger, worker; may not: reader, operator"]);
    role.gets("REVOKE EXECUTE ON FUNCTION rate_limit.reset(text), rate_limit._claim FROM app_role").await;
    let advice = format!("GRANT EXECUTE ON FUNCTION rate_limit.reset(text) TO \"{name}\";");
    examine(&role.url).has("grants", "problem", &[&advice, "for the use worker", "lacks rate_limit._claim"]);
    // Its advice solves the problem.
    database.execute(&advice).await;
    examine(&role.url).has("grants", "warning", &["lacks rate_limit._claim"]);

    role.gets(
        "GRANT UPDATE (value) ON rate_limit.rate_limits TO app_role; GRANT SELECT ON rate_limit.jobs TO app_role",
    )
    .await;
    examine(&role.url).has("tables by hand", "warning", &["may change rate_limit.rate_limits by hand", "REVOKE", name]);
    role.gets("REVOKE ALL ON rate_limit.rate_limits FROM app_role").await;
    examine(&role.url).has("tables by hand", "note", &["may read rate_limit.jobs by hand, and change nothing"]).has(
        "jobs",
        "ok",
        &["none"],
    );

    database
        .execute("GRANT EXECUTE ON FUNCTION rate_limit._decide, rate_limit._adopt, rate_limit.reset(text) TO PUBLIC")
        .await;
    let found = examine(&database.url);
    found.has("privileges", "warning", &["every role has EXECUTE on reset(text)"]);
    database.execute(found.by_check["privileges"]["advice"].as_str().expect("SQL")).await;
    examine(&database.url).has("privileges", "ok", &[]).has("grants", "note", &[&format!("granted to: {name} (")]);
    role.drop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn settings_that_lose_data_or_forbid_writing_are_reported() {
    let database = Database::migrated().await;
    let role = Role::new(&database).await;
    let name = &database.name;
    database.execute(&format!("ALTER DATABASE {name} SET synchronous_commit = on")).await;
    let found = examine(&database.url);
    found.has("writing", "ok", &[]);
    // The tests' server may have settings that lose data.
    let text = found.by_check["durability"]["found"].as_str().expect("a text").to_owned();
    assert!(
        text.contains("synchronous_commit=on (of the database)") && !text.contains("decisions are returned"),
        "{text}"
    );
    if text.contains("fsync=off") {
        found.has("durability", "problem", &["may destroy the database", "full_page_writes = on"]);
    }
    role.gets("ALTER ROLE app_role SET synchronous_commit = off").await;
    role.gets("ALTER ROLE app_role SET default_transaction_read_only = on").await;
    role.gets("ALTER ROLE app_role SET lock_timeout = '50ms'; ALTER ROLE app_role SET statement_timeout = '30s'").await;
    let found = examine(&role.url);
    let state = found.by_check["durability"]["state"].as_str().expect("a state");
    assert!(["warning", "problem"].contains(&state), "{state}");
    found
        .has(
            "durability",
            state,
            &["synchronous_commit=off (of the role)", "decisions are returned before", "Durability::Relaxed"],
        )
        .has("writing", "problem", &["default_transaction_read_only=on (of the role)", "RESET"])
        .has("time-outs", "warning", &["statement_timeout=30000 (of the role)", "lock_timeout: less than a second"]);
    role.gets("ALTER ROLE app_role CONNECTION LIMIT 1; ALTER ROLE app_role RESET ALL").await;
    role.gets("ALTER ROLE app_role SET idle_in_transaction_session_timeout = '1min'").await;
    role.alone().await;
    examine(&role.url)
        .has("connections", "warning", &["1 of the 1 connection of the role is in use"])
        .has("pooler", "note", &["not checked", "53300"])
        .has("start-up settings", "note", &["not checked", "53300"])
        .has("writing", "ok", &[])
        .has("time-outs", "ok", &["idle_in_transaction_session_timeout=60000 (of the role)"]);
    role.drop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn short_timeouts_are_reported_and_end_no_check() {
    let database = Database::migrated().await;
    let role = Role::new(&database).await;
    // After a check that is refused, such a short timeout may end the session.
    role.gets("ALTER ROLE app_role SUPERUSER").await;
    // Less than the pause between two statements.
    role.gets("ALTER ROLE app_role SET idle_in_transaction_session_timeout = '1ms'").await;
    examine(&role.url).has("time-outs", "warning", &["idle_in_transaction_session_timeout=1 (of the role)"]);
    if version(&database.pool).await >= 170_000 {
        // Less than a check takes. The tests' server allows replacing its own functions.
        role.gets("ALTER ROLE app_role RESET ALL; ALTER ROLE app_role SET transaction_timeout = '500ms'").await;
        database.execute("ALTER FUNCTION pg_catalog.clock_timestamp() RENAME TO real_clock_timestamp").await;
        let slow = "CREATE FUNCTION pg_catalog.clock_timestamp() RETURNS timestamptz LANGUAGE sql VOLATILE AS \
                    $$ SELECT pg_catalog.real_clock_timestamp() FROM pg_catalog.pg_sleep(0.6) $$";
        database.execute(slow).await;
        examine(&role.url).has("time-outs", "warning", &["transaction_timeout=500 (of the role)"]);
    }
    role.drop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lost_connection_ends_the_run_after_what_was_found() {
    let database = Database::migrated().await;
    // The tests' server allows replacing its own functions.
    let lost = "CREATE FUNCTION pg_catalog.clock_timestamp() RETURNS timestamptz LANGUAGE sql VOLATILE AS \
                $$ SELECT pg_catalog.now() WHERE pg_catalog.pg_terminate_backend(pg_catalog.pg_backend_pid()) $$";
    database.execute("ALTER FUNCTION pg_catalog.clock_timestamp() RENAME TO real_clock_timestamp").await;
    database.execute(lost).await;
    for (args, word) in [(&[][..], "isolation  "), (&["--json"], "\"isolation\"")] {
        let run = doctor(&database.url, args);
        assert_eq!(run.code, Some(3), "{}", run.stderr);
        assert!(run.stderr.contains("cannot examine the database"), "{}", run.stderr);
        assert!(run.stdout.contains(word), "{}", run.stdout);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_wrong_or_stopped_clock_is_reported() {
    let database = Database::migrated().await;
    // The tests' server allows replacing its own functions.
    let put = |body: &str| {
        format!(
            "CREATE FUNCTION pg_catalog.clock_timestamp() RETURNS timestamptz LANGUAGE sql VOLATILE AS \
             $$ SELECT {body} $$"
        )
    };
    database.execute("ALTER FUNCTION pg_catalog.clock_timestamp() RENAME TO real_clock_timestamp").await;
    database.execute(&put("pg_catalog.real_clock_timestamp() - interval '1 hour'")).await;
    let found = examine(&database.url);
    found.has("clock", "warning", &[" s behind this machine's", "Only the database's clock counts"]);
    let text = found.by_check["clock"]["found"].as_str().expect("a text");
    assert!(text.contains("3600.") || text.contains("3599.9"), "{text}"); // On a busy machine, an answer takes some time.
    database.execute("DROP FUNCTION pg_catalog.clock_timestamp()").await;
    database.execute(&put("'2026-01-01Z'::timestamptz")).await;
    examine(&database.url).has("clock", "problem", &["does not advance"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn jobs_without_a_worker_are_reported() {
    let database = Database::migrated().await;
    let limits = Limits::new().define("a", Limit::token_bucket(1000, Duration::from_secs(1))).expect("a limit");
    let queue = Queue::new(&limiter(&database.pool, limits, |_| {}), "q").expect("a queue");
    let mut ids = Vec::new();
    for _ in 0..3 {
        ids.push(scheduled(&queue.enqueue(Job::new(("a", "k"), &1).expect("a job")).await.expect("an answer")).id);
    }
    let change = |id: i64, columns: &str| format!("UPDATE rate_limit.jobs SET {columns} WHERE id = {id}");
    examine(&database.url).has("jobs", "ok", &["3 waiting (the oldest for ", "), 0 running, 0 dead, 0 ended"]);
    database.execute(&change(ids[0], "run_at = run_at - 7200000000")).await;
    examine(&database.url).has("jobs", "warning", &["should have begun 2h", "Run workers"]);
    database.execute(&change(ids[0], "state = 'running', lease_until = rate_limit._clock() - 7200000000")).await;
    examine(&database.url).has("jobs", "warning", &["1 running", "lease expired 2h", "died"]);
    database.execute(&change(ids[0], "state = 'dead'")).await;
    examine(&database.url).has("jobs", "warning", &["2 waiting (", "0 running, 1 dead", "requeue"]);
    database.execute(&change(ids[0], "state = 'done', finished_at = rate_limit._clock()")).await;
    examine(&database.url).has("jobs", "ok", &["0 running, 0 dead, 1 ended"]);
}

pub async fn version(pool: &PgPool) -> i32 {
    let sql = "SELECT current_setting('server_version_num')::integer";
    sqlx::query_scalar(sql).fetch_one(pool).await.expect("a version")
}

/// The contents of the tables, with the transactions that wrote each row.
async fn contents(database: &Database) -> String {
    let sql = "SELECT concat_ws(' ', \
                 (SELECT string_agg(concat_ws(',', r.ctid, r.xmin, r.xmax, r::text), ';' ORDER BY r.key) FROM rate_limit.rate_limits AS r), \
                 (SELECT string_agg(concat_ws(',', j.ctid, j.xmin, j.xmax, j::text), ';' ORDER BY j.id) FROM rate_limit.jobs AS j), \
                 (SELECT string_agg(m::text, ';' ORDER BY m.version) FROM rate_limit.migrations AS m), \
                 (SELECT string_agg(concat_ws(',', c.oid, c.xmin), ';' ORDER BY c.oid) FROM pg_class AS c), \
                 (SELECT string_agg(concat_ws(',', p.oid, p.xmin), ';' ORDER BY p.oid) FROM pg_proc AS p), \
                 (SELECT string_agg(concat_ws(',', d.setdatabase, d.setrole, d.setconfig), ';') FROM pg_db_role_setting AS d \
                    WHERE d.setdatabase = (SELECT oid FROM pg_database WHERE datname = current_database())), \
                 (SELECT string_agg(concat_ws(',', relname, n_tup_ins, n_tup_upd, n_tup_del), ';' ORDER BY relname) \
                    FROM pg_stat_user_tables))";
    sqlx::query_scalar(AssertSqlSafe(sql)).fetch_one(&database.pool).await.expect("the contents")
}

#[tokio::test(flavor = "multi_thread")]
async fn a_doctor_changes_nothing() {
    // Not `migrated`: the statistics of a copied database do not count the rows that were copied.
    let database = Database::empty().await;
    pg_limiter::migrate::migrate(&database.pool).await.expect("migrate");
    // Autovacuum would change the tables, and the doctor examines tables with findings in more detail.
    database
        .execute(
            "ALTER TABLE rate_limit.rate_limits SET (autovacuum_enabled = off); ALTER TABLE rate_limit.jobs SET (autovacuum_enabled = off);
             INSERT INTO rate_limit.rate_limits (name, key, value, ts, idle_at) SELECT 'a', i::text, 1, 0, 0 FROM generate_series(1, 50) AS i",
        )
        .await;
    let limits = Limits::new().define("a", Limit::token_bucket(1000, Duration::from_secs(1))).expect("a limit");
    let queue = Queue::new(&limiter(&database.pool, limits, |_| {}), "q").expect("a queue");
    scheduled(&queue.enqueue(Job::new(("a", "k"), &1).expect("a job")).await.expect("an answer"));
    settled(&database).await;
    let before = contents(&database).await;
    for _ in 0..2 {
        examine(&database.url);
        doctor(&database.url, &["--old-transaction", "1us"]);
    }
    settled(&database).await;
    assert_eq!(contents(&database).await, before);
}

/// Waits until the tool's sessions have ended and the statistics have arrived.
async fn settled(database: &Database) {
    let others =
        "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND application_name = 'pg-limiter'";
    // The sessions that migrated report last.
    let arrived = "SELECT bool_and(s.n_tup_ins >= w.rows) FROM pg_stat_user_tables AS s
        JOIN (SELECT 'rate_limits' AS name, count(*) AS rows FROM rate_limit.rate_limits
              UNION ALL SELECT 'jobs', count(*) FROM rate_limit.jobs
              UNION ALL SELECT 'migrations', count(*) FROM rate_limit.migrations
              UNION ALL SELECT 'objects', count(*) FROM rate_limit.objects) AS w ON w.name = s.relname";
    for _ in 0..1500 {
        let others: i64 = sqlx::query_scalar(others).fetch_one(&database.pool).await.expect("a count");
        let arrived: bool = sqlx::query_scalar(arrived).fetch_one(&database.pool).await.expect("an answer");
        if others == 0 && arrived {
            return;
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    panic!("sessions do not end, or the statistics do not arrive");
}
