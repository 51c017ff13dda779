//! Dumps, with the commands of the guide: a whole database, and its data into a database that is migrated, with the guide's triggers.
//! Needs the programs `pg_dump` and `pg_restore`.

use std::path::{Path, PathBuf};
use std::process::Command;

use pg_limiter::embedded::{Server, ServerConfig};
use pg_limiter::migrate::{Migrator, Use, migrate};
use pg_limiter::queue::{Job, Queue};
use pg_limiter::sqlx::{self, AssertSqlSafe, PgPool};
use pg_limiter::{Item, Limit, Limiter, Limits};
use tokio::sync::OnceCell;

use crate::support::gate::CENTURY;
use crate::support::{Database, guide, scheduled};

/// A folder with `pg_dump` and `pg_restore`, and a server of their version: an older `pg_dump` refuses a newer server.
struct Programs {
    dir: PathBuf,
    server: Server,
}

async fn programs() -> &'static Programs {
    static PROGRAMS: OnceCell<Programs> = OnceCell::const_new();
    let start = || {
        let dir = folder().expect("no pg_dump and pg_restore: run tests/machine, which installs them");
        let version = Command::new(dir.join("pg_dump")).arg("--version").output().expect("pg_dump").stdout;
        let version = String::from_utf8(version).expect("UTF-8");
        let major = version.split_whitespace().nth(2).and_then(|version| version.split('.').next());
        let mut config = ServerConfig::default();
        config.version = major.map(str::to_owned);
        config.durable = false;
        let server = Server::start(&config).unwrap_or_else(|error| panic!("{version}: {error}"));
        Programs { dir, server }
    };
    PROGRAMS.get_or_init(|| async { tokio::task::spawn_blocking(start).await.expect("a server") }).await
}

fn folder() -> Option<PathBuf> {
    let has_both = |dir: &Path| ["pg_dump", "pg_restore"].iter().all(|program| dir.join(program).is_file());
    let named = std::env::var_os("PG_BIN_DIR").map(PathBuf::from);
    let path = std::env::var_os("PATH").unwrap_or_default();
    let packaged = std::fs::read_dir("/usr/lib/postgresql").into_iter().flatten().flatten();
    let packaged = packaged.map(|version| version.path().join("bin"));
    named.into_iter().chain(packaged).chain(std::env::split_paths(&path)).find(|dir| has_both(dir))
}

impl Programs {
    async fn database(&self, name: &str) -> (String, PgPool) {
        let admin = Database::pool(&self.server.url("postgres"), 1).await;
        let create = AssertSqlSafe(format!("CREATE DATABASE {name} TEMPLATE template0"));
        sqlx::query(create).execute(&admin).await.expect("a database");
        admin.close().await;
        let url = self.server.url(name);
        let pool = Database::pool(&url, 4).await;
        sqlx::raw_sql("REVOKE CREATE ON SCHEMA public FROM PUBLIC").execute(&pool).await.expect("revoked");
        (url, pool)
    }

    /// Runs commands for a shell, in this folder.
    fn shell(&self, commands: &str, folder: &Path, [old, new]: [&str; 2]) -> Result<(), String> {
        let path = std::env::join_paths([&*self.dir, Path::new("/usr/bin"), Path::new("/bin")]).expect("a path");
        let mut shell = Command::new("sh");
        shell.args(["-e", "-c", commands]).current_dir(folder).env("PATH", path);
        let output = shell.env("OLD_URL", old).env("NEW_URL", new).output().expect("a shell");
        let error = String::from_utf8_lossy(&output.stderr).into_owned();
        if output.status.success() && error.is_empty() { Ok(()) } else { Err(error) }
    }
}

/// The guide's blocks of commands: the dump without the records and its restore, and the restore of a whole dump.
fn commands() -> [&'static str; 2] {
    let section = guide::chapter("migrations").split("## Dump and restore").nth(1).expect("a section");
    let section = section.split("\n## ").next().expect("its text");
    let blocks: Vec<&str> = section.split("```sh\n").skip(1).filter_map(|block| block.split("```").next()).collect();
    blocks.try_into().expect("two blocks of commands")
}

/// The application's tables, with the triggers of the guide.
async fn with_triggers(pool: &PgPool) {
    let triggers = guide::sql_of(guide::chapter("sql")).into_iter().filter(|block| block.contains("CREATE TRIGGER"));
    let sql =
        format!("CREATE TABLE posts (author text NOT NULL, body text); {}", triggers.collect::<Vec<_>>().join(";"));
    sqlx::raw_sql(AssertSqlSafe(sql)).execute(pool).await.expect("the guide's triggers");
}

fn limiter(pool: &PgPool) -> Limiter {
    let limits = Limits::new()
        .define("bucket", Limit::token_bucket(10, CENTURY))
        .and_then(|limits| limits.define("window", Limit::sliding_window(10, CENTURY).resolution(3)))
        .and_then(|limits| limits.define("sharded", Limit::token_bucket(100, CENTURY).shards(4)))
        .and_then(|limits| limits.define("slots", Limit::concurrency(2).lease(CENTURY / 100)))
        .and_then(|limits| limits.define("gate", Limit::gate()))
        .and_then(|limits| limits.define("mails", Limit::token_bucket(1, CENTURY / 100).capacity(1)));
    Limiter::new(pool.clone(), limits.expect("limits"))
}

/// Fills every table of the limiter, and the application's, with more rows of one author than the trigger's limit allows.
async fn fill(pool: &PgPool) {
    let limiter = limiter(pool);
    for _ in 0..3 {
        let call = [Item::new("bucket", "k"), Item::new("window", "k"), Item::new("sharded", "k").count(5)];
        assert!(limiter.limit(call).await.expect("a decision").is_allowed());
    }
    let lease = limiter.acquire(("slots", "k")).await.expect("an answer").enforce().expect("a slot");
    std::mem::forget(lease); // Its slot stays taken.
    limiter.block(("gate", "k"), CENTURY / 2).await.expect("blocked");
    let once = pg_limiter::Call::from(("bucket", "once")).idempotency_key("k:1");
    assert!(limiter.limit(once).await.expect("a decision").is_allowed());
    let queue = Queue::new(&limiter, "mails").expect("a queue");
    for nth in 0..3 {
        let _ = scheduled(&queue.enqueue(Job::new(("mails", "k"), &nth).expect("a job")).await.expect("an answer"));
    }
    let rows = "INSERT INTO posts VALUES ('ann', '1'), ('ann', '2');
        ALTER TABLE posts DISABLE TRIGGER limit_posts;
        INSERT INTO posts SELECT 'ann', n::text FROM generate_series(3, 50) AS n;
        ALTER TABLE posts ENABLE TRIGGER limit_posts;
        INSERT INTO messages VALUES ('ann', 'red')";
    sqlx::raw_sql(rows).execute(pool).await.expect("rows");
    limiter.close().await;
}

/// All rows of these tables, as text.
async fn contents(pool: &PgPool) -> Vec<String> {
    let of_limiter = ["rate_limits", "answers", "jobs", "groups"].map(|table| format!("rate_limit.{table}"));
    let tables = of_limiter.into_iter().chain(["posts".to_owned(), "messages".to_owned()]);
    let mut rows = Vec::new();
    for table in tables {
        let sql = AssertSqlSafe(format!("SELECT '{table} ' || t::text FROM {table} AS t ORDER BY 1"));
        let found: Vec<String> = sqlx::query_scalar(sql).fetch_all(pool).await.expect(&table);
        assert!(!found.is_empty() || table == "rate_limit.groups", "{table} is empty");
        rows.extend(found);
    }
    rows
}

/// The limiter goes on where it was, and the trigger limits again.
async fn goes_on(pool: &PgPool) {
    let limiter = limiter(pool);
    let left = limiter.peek([Item::new("bucket", "k"), Item::new("window", "k"), Item::new("sharded", "k")]).await;
    let left: Vec<f64> = left.expect("balances").limits().iter().map(|limit| limit.remaining.round()).collect();
    assert_eq!(left, [7.0, 7.0, 85.0]);
    assert_eq!(limiter.peek(("slots", "k")).await.expect("a balance").remaining(), 1.0);
    assert!(limiter.is_blocked(("gate", "k")).await.expect("an answer").is_some());
    let queue = Queue::new(&limiter, "mails").expect("a queue");
    let enqueued = queue.enqueue(Job::new(("mails", "k"), &9).expect("a job")).await.expect("an answer");
    assert_eq!(scheduled(&enqueued).id, 4, "the ids of jobs go on");
    let insert = sqlx::query("INSERT INTO posts VALUES ('ann', 'one more')").execute(pool).await.expect_err("limited");
    assert_eq!(insert.as_database_error().and_then(|error| error.code()).as_deref(), Some("RL429"), "{insert}");
    sqlx::query("INSERT INTO posts VALUES ('bob', 'one')").execute(pool).await.expect("allowed");
    limiter.close().await;
}

#[tokio::test]
#[ignore = "needs pg_dump and pg_restore: run tests/machine"]
async fn a_dump_of_the_data_restores_into_a_migrated_database() {
    let programs = programs().await;
    let (old_url, old) = programs.database("data_old").await;
    migrate(&old).await.expect("migrate");
    with_triggers(&old).await;
    fill(&old).await;
    let folder = tempfile::tempdir().expect("a folder");
    let [dump, restore_whole] = commands();
    programs
        .shell("pg_dump --format custom --file full.dump \"$OLD_URL\"", folder.path(), [&old_url, ""])
        .expect("a whole dump");
    for (name, commands) in [("data_new", dump), ("data_new_of_whole", restore_whole)] {
        let (new_url, new) = programs.database(name).await;
        migrate(&new).await.expect("migrate");
        with_triggers(&new).await;
        programs.shell(commands, folder.path(), [&old_url, &new_url]).expect(commands);
        assert_eq!(contents(&new).await, contents(&old).await, "{commands}");
        assert!(Migrator::default().run(&new).await.expect("migrate").applied.is_empty());
        goes_on(&new).await;
    }
}

/// Without `--disable-triggers`, rows within the limit are restored although the search_path is empty, and others are refused.
#[tokio::test]
#[ignore = "needs pg_dump and pg_restore: run tests/machine"]
async fn the_guides_triggers_work_in_a_restore() {
    let programs = programs().await;
    let (old_url, old) = programs.database("triggers_old").await;
    sqlx::raw_sql("CREATE TABLE posts (author text NOT NULL, body text)").execute(&old).await.expect("a table");
    let folder = tempfile::tempdir().expect("a folder");
    for (name, rows, is_allowed) in [("triggers_few", 2, true), ("triggers_many", 3, false)] {
        let fill =
            format!("TRUNCATE posts; INSERT INTO posts SELECT 'ann', n::text FROM generate_series(1, {rows}) AS n");
        sqlx::raw_sql(AssertSqlSafe(fill)).execute(&old).await.expect("rows");
        let (new_url, new) = programs.database(name).await;
        migrate(&new).await.expect("migrate");
        with_triggers(&new).await;
        let commands = "pg_dump --format custom --file posts.dump \"$OLD_URL\"
            pg_restore --data-only --table posts --dbname \"$NEW_URL\" posts.dump";
        let restored = programs.shell(commands, folder.path(), [&old_url, &new_url]);
        match restored {
            Ok(()) => assert!(is_allowed),
            Err(error) => assert!(!is_allowed && error.contains("rate limit \"posts\" exceeded"), "{error}"),
        }
        let restored: i64 = sqlx::query_scalar("SELECT count(*) FROM posts").fetch_one(&new).await.expect("a count");
        assert_eq!(restored, if is_allowed { rows } else { 0 });
    }
}

/// As for a staging database: the records are empty, and the application's role keeps its grants. Without privileges in the dump,
/// `migrate` takes EXECUTE from PUBLIC.
#[tokio::test]
#[ignore = "needs pg_dump and pg_restore: run tests/machine"]
async fn after_a_restore_of_the_definitions_migrate_keeps_the_grants() {
    let programs = programs().await;
    let (old_url, old) = programs.database("definitions_old").await;
    migrate(&old).await.expect("migrate");
    let grants = Use::ALL.map(guide::grants).join("; ").replace("app_role", "staging");
    sqlx::raw_sql(AssertSqlSafe(format!("CREATE ROLE staging; {grants}"))).execute(&old).await.expect("granted");
    let acl = "SELECT string_agg(p.oid::regprocedure || p.proacl::text, ' ' ORDER BY p.oid::regprocedure::text) FROM pg_proc AS p
        WHERE p.pronamespace = 'rate_limit'::regnamespace";
    let granted: String = sqlx::query_scalar(acl).fetch_one(&old).await.expect("privileges");
    let folder = tempfile::tempdir().expect("a folder");
    let [without_records, _] = commands();
    let without_records = without_records.lines().next().expect("a dump");
    let dump = "pg_dump --format custom --file app.dump \"$OLD_URL\"";
    for (name, dump, is_granted) in [
        ("definitions_only", format!("{dump} --schema-only"), true),
        ("without_records", without_records.to_owned(), true),
        ("without_acl", format!("{dump} --no-acl"), false),
    ] {
        let (new_url, new) = programs.database(name).await;
        let commands = format!("{dump}\npg_restore --exit-on-error --dbname \"$NEW_URL\" app.dump");
        programs.shell(&commands, folder.path(), [&old_url, &new_url]).expect("restored");
        migrate(&new).await.expect("migrate");
        assert_eq!(Migrator::default().check(&new).await.expect("checked"), [], "{name}");
        let now: String = sqlx::query_scalar(acl).fetch_one(&new).await.expect("privileges");
        assert_eq!(now == granted, is_granted, "{name}: {now}");
    }
    for database in ["definitions_old", "definitions_only", "without_records"] {
        let pool = Database::pool(&programs.server.url(database), 1).await;
        sqlx::raw_sql("DROP OWNED BY staging").execute(&pool).await.expect("dropped");
    }
    sqlx::raw_sql("DROP ROLE staging").execute(&old).await.expect("dropped");
}

#[tokio::test]
#[ignore = "needs pg_dump and pg_restore: run tests/machine"]
async fn a_dump_of_a_whole_database_restores() {
    let programs = programs().await;
    let (old_url, old) = programs.database("whole_old").await;
    migrate(&old).await.expect("migrate");
    with_triggers(&old).await;
    fill(&old).await;
    let (new_url, new) = programs.database("whole_new").await;
    let folder = tempfile::tempdir().expect("a folder");
    let commands = "pg_dump --format custom --file whole.dump \"$OLD_URL\"
        pg_restore --exit-on-error --dbname \"$NEW_URL\" whole.dump";
    programs.shell(commands, folder.path(), [&old_url, &new_url]).expect("restored");
    assert_eq!(contents(&new).await, contents(&old).await);
    assert!(Migrator::default().run(&new).await.expect("migrate").applied.is_empty());
    goes_on(&new).await;
}
