//! The public API in Rust (traits, sizes, use in tasks), the SQL API from psql and triggers, and the documents.

use std::collections::BTreeSet;
use std::time::Duration;

use axum::extract::State;
use axum::http::StatusCode;
use axum::routing::post;
use pg_limiter::sqlx::{self, Row};
use pg_limiter::{
    Call, Decision, Denied, Error, Item, Limit, Limiter, Limits, Outcome, RetryPolicy, TransactionLimiter,
};

use crate::support::{Database, guide};

fn limits() -> Limits {
    Limits::new().define("a", Limit::token_bucket(2, Duration::from_secs(3600))).expect("a limit")
}

#[test]
fn handles_and_values_cross_threads() {
    fn everywhere<T: Send + Sync + Clone + std::fmt::Debug + 'static>() {}
    everywhere::<Limiter>();
    everywhere::<TransactionLimiter>();
    everywhere::<Limits>();
    everywhere::<Call>();
    everywhere::<Decision>();
    everywhere::<Denied>();
    everywhere::<RetryPolicy>();
    fn error<T: std::error::Error + Send + Sync + 'static>() {}
    error::<Error>();
}

/// This library and its users move futures before they are polled, so large and rarely used parts are boxed. The driver's
/// futures are such parts: when every call held them, a hot key served half as many decisions.
#[tokio::test]
async fn the_futures_of_calls_are_small() {
    let database = Database::migrated().await;
    let limiter = database.limiter(Limits::new());
    let mut connection = database.pool.acquire().await.expect("a connection");
    let call = || ("a", "u1");
    let within = [
        ("within: limit", { size_of_val(&limiter.within(&mut connection).limit(call())) }),
        ("within: charge", { size_of_val(&limiter.within(&mut connection).charge(call())) }),
    ];
    let sizes = [
        ("limit", size_of_val(&limiter.limit(call()))),
        ("check", size_of_val(&limiter.check(call()))),
        ("peek", size_of_val(&limiter.peek(call()))),
        ("credit", size_of_val(&limiter.credit(call()))),
        ("charge", size_of_val(&limiter.charge(call()))),
        ("reset", size_of_val(&limiter.reset(call()))),
        ("until_ready", size_of_val(&limiter.until_ready(call(), Duration::from_secs(1)))),
        ("prune", size_of_val(&limiter.prune())),
    ];
    assert!(within.iter().chain(&sizes).all(|(_, size)| *size <= 4096), "{within:?} {sizes:?}");
}

async fn send(State(limiter): State<Limiter>) -> Result<String, (StatusCode, String)> {
    let failed = |error: sqlx::Error| (StatusCode::INTERNAL_SERVER_ERROR, error.to_string());
    let refused = |error: Error| match error {
        Error::Denied(denied) => (StatusCode::TOO_MANY_REQUESTS, denied.retry_after.as_secs().to_string()),
        other => (StatusCode::SERVICE_UNAVAILABLE, other.to_string()),
    };
    let mut tx = limiter.pool().begin().await.map_err(failed)?;
    let decision = limiter.within(&mut tx).limit(("a", "u1")).await.map_err(refused)?;
    let permit = decision.enforce().map_err(refused)?;
    sqlx::query("INSERT INTO messages VALUES (1)").execute(&mut *tx).await.map_err(failed)?;
    tx.commit().await.map_err(failed)?;
    let own = limiter.peek(("a", "u1")).await.map_err(refused)?;
    Ok(format!("{} {}", permit.remaining.floor(), own.remaining().floor()))
}

/// Real requests to a handler that takes limits in its own transaction.
#[tokio::test]
async fn limits_work_in_an_axum_handler() {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    let database = Database::migrated().await;
    database.execute("CREATE TABLE messages (id int)").await;
    let app = axum::Router::new().route("/", post(send)).with_state(Limiter::new(database.pool.clone(), limits()));
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let address = listener.local_addr().expect("an address");
    let server = tokio::spawn(async move { axum::serve(listener, app).await });
    let mut statuses = Vec::new();
    for _ in 0..3 {
        let mut stream = tokio::net::TcpStream::connect(address).await.expect("a connection");
        let request = "POST / HTTP/1.1\r\nHost: test\r\nContent-Length: 0\r\nConnection: close\r\n\r\n";
        stream.write_all(request.as_bytes()).await.expect("a request");
        let mut response = String::new();
        stream.read_to_string(&mut response).await.expect("a response");
        statuses.push(response[9..12].to_owned());
    }
    server.abort();
    assert_eq!(statuses, ["200", "200", "429"]);
    let rows: i64 = sqlx::query_scalar("SELECT count(*) FROM messages").fetch_one(&database.pool).await.expect("count");
    assert_eq!(rows, 2);
}

/// Every operation, in both forms, in a spawned task.
#[tokio::test]
async fn every_operation_works_in_a_spawned_task() {
    let database = Database::migrated().await;
    let limiter = Limiter::new(database.pool.clone(), limits());
    let task = tokio::spawn(async move {
        let mut tx = limiter.pool().begin().await?;
        let item = || Item::new("a", "u1");
        let (user, name) = (String::from("u1"), String::from("a"));
        assert!(limiter.within(&mut tx).check(("a", &user)).await.expect("a decision").is_allowed());
        assert!(limiter.within(&mut tx).check((&name, &user, 2)).await.expect("a decision").is_allowed());
        assert!(limiter.within(&mut tx).check((name, user)).await.expect("a decision").is_allowed());
        assert!(limiter.within(&mut tx).limit(item()).await.expect("a decision").is_allowed());
        assert!(limiter.within(&mut tx).check([item()]).await.expect("a decision").is_allowed());
        let _ = limiter.within(&mut tx).peek(item()).await.expect("balances");
        let _ = limiter.within(&mut tx).credit(item()).await.expect("balances");
        let _ = limiter.within(&mut tx).charge(item()).await.expect("balances");
        limiter.within(&mut tx).reset(item()).await.expect("reset");
        let _ = limiter.within(&mut tx).reset_all_keys("a").await.expect("reset");
        tx.commit().await?;
        assert_eq!(limiter.limit(item().reserve()).await.expect("a decision").outcome(), Outcome::Allowed);
        assert!(limiter.check(item()).await.expect("a decision").is_allowed());
        let _ = limiter.peek(item()).await.expect("balances");
        let _ = limiter.credit(item()).await.expect("balances");
        let _ = limiter.charge(item()).await.expect("balances");
        limiter.reset(item()).await.expect("reset");
        let _ = limiter.reset_all_keys("a").await.expect("reset");
        let _ = limiter.prune().await.expect("pruned");
        let work = limiter.clone();
        limiter
            .transaction(async move |tx| work.within(tx).limit(("a", "u1")).await?.enforce())
            .await
            .expect("a permit");
        Ok::<_, sqlx::Error>(())
    });
    task.await.expect("a task").expect("no error");
}

#[tokio::test]
async fn a_trigger_rejects_rows_with_its_own_sqlstate() {
    let database = Database::migrated().await;
    database
        .execute(
            "CREATE TABLE posts (author text NOT NULL, body text);
             CREATE FUNCTION limit_posts() RETURNS trigger LANGUAGE plpgsql AS $$
             BEGIN
               PERFORM rate_limit.enforce_with('posts', NEW.author, kind => 'token_bucket', rate => 2, period => '1 hour');
               RETURN NEW;
             END $$;
             CREATE TRIGGER limit_posts BEFORE INSERT ON posts FOR EACH ROW EXECUTE FUNCTION limit_posts();
             INSERT INTO posts VALUES ('u1', 'one'), ('u2', 'one'), ('u1', 'two')",
        )
        .await;
    let error = sqlx::query("INSERT INTO posts VALUES ('u2', 'two'), ('u1', 'three')").execute(&database.pool).await;
    let error = error.expect_err("the limit is reached").into_database_error().expect("a database error");
    assert_eq!(error.code().as_deref(), Some("RL429"));
    assert_eq!(error.message(), "rate limit \"posts\" exceeded");
    let error = error.downcast::<sqlx::postgres::PgDatabaseError>();
    let detail = error.detail().expect("a detail");
    let seconds = detail.strip_prefix("Retry after ").and_then(|rest| rest.strip_suffix(" seconds.")).expect(detail);
    let seconds: f64 = seconds.parse().expect(detail);
    assert!(seconds > 1700.0 && seconds <= 1800.0, "{detail}");
    // The row of u2 in the same statement is rolled back, and so is its charge.
    let rows: i64 = sqlx::query_scalar("SELECT count(*) FROM posts").fetch_one(&database.pool).await.expect("count");
    assert_eq!(rows, 3);
    database.execute("INSERT INTO posts VALUES ('u2', 'two')").await;
}

#[tokio::test]
async fn the_sql_functions_work_from_psql() {
    let database = Database::migrated().await;
    let row = sqlx::query(
        "SELECT ok, retry_after IS NULL AS now, value FROM rate_limit.limit_with('send_message', 'u1', kind => 'token_bucket', \
         rate => 10, period => '1 minute')",
    )
    .fetch_one(&database.pool)
    .await
    .expect("a decision");
    assert_eq!((row.get("ok"), row.get("now"), row.get("value")), (true, true, 9.0));
    let gone: i64 = sqlx::query_scalar("SELECT rate_limit.reset('send_message', 'u1')")
        .fetch_one(&database.pool)
        .await
        .expect("reset");
    assert_eq!(gone, 1);
    let gone: i64 =
        sqlx::query_scalar("SELECT rate_limit.reset('send_message')").fetch_one(&database.pool).await.expect("reset");
    assert_eq!(gone, 0);
}

/// Without a `start`, the windows of a key keep their phase after a reset, in another session, and whatever the time.
#[tokio::test]
async fn the_default_phase_is_stable_and_spread() {
    let database = Database::migrated().await;
    let mut phases = Vec::new();
    for key in 0..40 {
        let mut seen = Vec::new();
        for day in [0, 1, 400] {
            let sql = "SELECT extract(epoch FROM retry_after)::double precision FROM rate_limit.limit_with('w', $1, \
                       kind => 'fixed_window', rate => 1, period => '1 hour', at => timestamptz '2026-01-01 00:00+00' + $2 * interval '1 day') \
                       WHERE NOT ok";
            let ask = || sqlx::query_scalar::<_, f64>(sql).bind(format!("k{key}")).bind(f64::from(day));
            assert_eq!(ask().fetch_optional(&database.pool).await.expect("allowed"), None);
            seen.push(ask().fetch_one(&database.pool).await.expect("denied"));
            sqlx::query("SELECT rate_limit.reset('w')").execute(&database.pool).await.expect("reset");
        }
        assert!(seen.iter().all(|wait| (wait - seen[0]).abs() < 1e-6), "{seen:?}");
        phases.push(seen[0]);
    }
    let quarters: std::collections::BTreeSet<i64> = phases.iter().map(|wait| (wait / 900.0) as i64).collect();
    assert_eq!(quarters.len(), 4, "{phases:?}");
}

#[tokio::test]
async fn every_sql_block_of_the_readme_and_the_guide_runs() {
    let database = Database::migrated().await;
    let role = format!("reader_{}", std::process::id());
    database
        .execute(&format!("CREATE TABLE posts (author text); DROP ROLE IF EXISTS {role}; CREATE ROLE {role}"))
        .await;
    let texts = [guide::README].into_iter().chain(guide::GUIDE.map(|(_, text)| text));
    let blocks: Vec<&str> = texts.flat_map(guide::sql_of).collect();
    assert!(blocks.len() >= 4, "{blocks:?}");
    for block in blocks {
        database.execute(&block.replace("app_role", &role)).await;
    }
    let author = "INSERT INTO posts VALUES ('u1')";
    database
        .execute(&format!("GRANT INSERT ON posts TO {role}; SET ROLE {role}; {author}; {author}; RESET ROLE"))
        .await;
    let refused = sqlx::query(author).execute(&database.pool).await.expect_err("the third of two");
    assert_eq!(refused.as_database_error().and_then(|error| error.code()).as_deref(), Some("RL429"));
    database.execute(&format!("DROP OWNED BY {role}; DROP ROLE {role}")).await;
}

/// The guide's table of defaults matches the code.
#[test]
fn the_guide_lists_the_defaults_of_the_limiter() {
    let config = pg_limiter::LimiterConfig::default();
    let grouped = |number: usize| match number / 1000 {
        0 => number.to_string(),
        thousands => format!("{thousands},{:03}", number % 1000),
    };
    let many_callers = guide::chapter("many_callers");
    for (field, value) in [
        ("isolation", format!("`{:?}`", config.isolation)),
        ("durability", format!("`{:?}`", config.durability)),
        ("connections", format!("`{:?}`", config.connections)),
        ("named_statements", format!("`{}`", config.named_statements)),
        ("lanes", grouped(config.lanes)),
        ("max_batch", grouped(config.max_batch)),
        ("max_waiting", grouped(config.max_waiting)),
        ("remember_denials", format!("`{:?}`", config.remember_denials)),
    ] {
        assert!(many_callers.contains(&format!("\n| `{field}` | {value} |")), "{field}: {value}");
    }
}

/// Each line of code on the page about other drivers is a line of the examples, which have tests of their own.
#[test]
fn the_code_for_other_drivers_is_that_of_the_examples() {
    let root = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("examples");
    let files = [
        "drivers/src/tokio_postgres.rs",
        "drivers/src/diesel_async.rs",
        "drivers/src/sea_orm.rs",
        "python/rate_limits.py",
        "node/rate_limits.js",
    ];
    let page = guide::chapter("drivers");
    assert!(files.iter().all(|file| page.contains(&format!("`examples/{file}`"))));
    let texts = files.map(|file| std::fs::read_to_string(root.join(file)).expect(file));
    let known: Vec<&str> = texts.iter().flat_map(|text| text.lines()).map(str::trim).collect();
    let blocks = page.split("```").skip(1).step_by(2).filter(|block| !block.starts_with("sql"));
    let lines: Vec<&str> = blocks.flat_map(|block| block.trim_end().lines().skip(1)).map(str::trim).collect();
    assert!(lines.len() >= 10, "{lines:?}");
    for line in lines {
        assert!(known.contains(&line), "no example has this line: {line}");
    }
}

/// A table row is in one document.
#[test]
fn no_table_row_is_in_two_documents() {
    let is_rule = |line: &str| line.starts_with('|') && !line.contains(|c: char| !"|-: ".contains(c));
    let mut rows = Vec::new();
    for (name, text) in guide::GUIDE.into_iter().chain([("README", guide::README)]) {
        let lines: Vec<&str> = text.lines().chain([""]).collect();
        // The line above the rule has the headings.
        let are_rows =
            lines.windows(2).filter(|pair| pair[0].starts_with('|') && !is_rule(pair[0]) && !is_rule(pair[1]));
        rows.extend(are_rows.map(|pair| (pair[0], name)));
    }
    assert!(rows.len() >= 400, "{}", rows.len());
    let mut seen = std::collections::BTreeMap::new();
    for (row, name) in rows {
        if let Some(other) = seen.insert(row, name) {
            panic!("{name} and {other}: {row}");
        }
    }
}

/// Links in documents that are read as files; rustdoc checks those in the documentation.
#[test]
fn every_link_in_the_documents_resolves() {
    let root = std::path::Path::new(env!("CARGO_MANIFEST_DIR"));
    let chapters = guide::GUIDE.map(|(name, _)| format!("src/guide/{name}.md"));
    let listed = chapters.iter().map(|chapter| root.join(chapter)).chain([root.join("src/guide/links.md")]);
    let listed: BTreeSet<_> = listed.collect();
    let entries =
        std::fs::read_dir(root.join("src/guide")).expect("a folder").map(|entry| entry.expect("an entry").path());
    let found: BTreeSet<_> =
        entries.filter(|path| path.extension().is_some_and(|extension| extension == "md")).collect();
    assert_eq!(listed, found, "the list in support/guide.rs and the chapters");
    let others = ["README.md", "CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md", "fuzz/README.md"].map(str::to_owned);
    let docs = ["docs", "docs/decisions"].into_iter().flat_map(|folder| {
        let entries =
            std::fs::read_dir(root.join(folder)).expect("a folder").map(|entry| entry.expect("an entry").path());
        let files = entries.filter(|path| path.is_file()).map(|path| path.file_name().expect("a name").to_owned());
        files.map(move |name| format!("{folder}/{}", name.to_str().expect("a name"))).collect::<Vec<_>>()
    });
    let docs: Vec<_> = docs.collect();
    assert!(docs.len() > 10, "{docs:?}");
    let mut checked = 0;
    for file in chapters.iter().chain(&others).chain(&docs) {
        let path = root.join(file);
        let text = std::fs::read_to_string(&path).expect("a document");
        let prose: String = text.split("```").step_by(2).collect();
        let defined: Vec<(&str, &str)> = text
            .lines()
            .filter_map(|line| line.strip_prefix('[')?.split_once("]: ").filter(|(label, _)| !label.contains(']')))
            .collect();
        let inline = prose.split("](").skip(1).filter_map(|rest| rest.split(')').next());
        for link in inline.chain(defined.iter().map(|(_, link)| *link)).filter(|link| !link.contains("://")) {
            let target = link.split('#').next().unwrap_or_default();
            assert!(path.parent().expect("a folder").join(target).exists(), "{file} refers to {link}");
            checked += 1;
        }
        for label in prose.split("][").skip(1).filter_map(|rest| rest.split(']').next()) {
            assert!(defined.iter().any(|(known, _)| *known == label), "{file} does not define the link [{label}]");
        }
        for (label, _) in &defined {
            assert!(prose.matches(&format!("[{label}]")).count() > 1, "{file} does not use [{label}]");
        }
    }
    assert!(checked > 60, "{checked} links");
}

/// Every public async function documents its errors, what dropping it does, and which transaction it runs in, or its type does
/// for all its functions.
#[test]
fn every_async_call_documents_errors_cancel_safety_and_transactions() {
    const HEADINGS: [&str; 3] = ["/// # Errors", "/// # Cancel safety", "/// # In a transaction"];
    let source = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let (mut folders, mut files) = (vec![source], Vec::new());
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(folder).expect("a folder").map(|entry| entry.expect("an entry").path()) {
            if entry.is_dir() {
                folders.push(entry);
            } else if entry.extension().is_some_and(|extension| extension == "rs") {
                let text = std::fs::read_to_string(&entry).expect("a file");
                files.push((entry, text));
            }
        }
    }
    let has_all_headings = |lines: &[&str]| {
        let docs = |line: &&&str| line.trim_start().starts_with("///") || line.trim_start().starts_with("#[");
        let docs: Vec<&str> = lines.iter().rev().take_while(docs).map(|line| line.trim_start()).collect();
        HEADINGS.iter().all(|heading| docs.contains(heading))
    };
    let name = |text: &str| text.split(|c: char| !c.is_alphanumeric()).next().unwrap_or_default().to_owned();
    let mut documented_types = BTreeSet::new();
    for (_, text) in &files {
        let lines: Vec<&str> = text.lines().collect();
        for (nth, line) in lines.iter().enumerate() {
            if let Some(rest) = line.strip_prefix("pub struct ").filter(|_| has_all_headings(&lines[..nth])) {
                documented_types.insert(name(rest));
            }
        }
    }
    assert_eq!(
        documented_types,
        BTreeSet::from(["Limiter", "Queue", "QueueWithin", "Queues", "Within"].map(str::to_owned))
    );
    let mut calls = 0;
    for (path, text) in &files {
        let lines: Vec<&str> = text.lines().collect();
        let mut type_name = String::new();
        for (nth, line) in lines.iter().enumerate() {
            if line.starts_with("impl") {
                type_name = line.strip_prefix("impl ").map(name).unwrap_or_default();
            }
            // `close` cannot fail.
            let is_call = line.trim_start().starts_with("pub async fn") && !line.contains("pub async fn close(");
            if is_call {
                calls += 1;
                let is_of_type = line.starts_with(' ') && documented_types.contains(&type_name);
                assert!(is_of_type || has_all_headings(&lines[..nth]), "{}: {line} lacks headings", path.display());
            }
        }
    }
    assert!(calls >= 35, "{calls}");
}
