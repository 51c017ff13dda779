//! The limiter leaves little in the server's statistics and log: few distinct statements, one write for each decision, short
//! log entries.

use std::collections::HashSet;
use std::time::Duration;

use futures_util::future::join_all;
use pg_limiter::embedded::Server;
use pg_limiter::queue::{Finish, Job, Queue, WorkerConfig, handler_fn};
use pg_limiter::sqlx::postgres::PgPoolOptions;
use pg_limiter::sqlx::{self, AssertSqlSafe, Connection, Executor, PgConnection, PgPool};
use pg_limiter::{Call, Connections, Isolation, Item, Limit, Limiter, LimiterConfig, Limits};

use crate::support::gate::CENTURY;
use crate::support::{Database, server_config};

const LEVELS: [&str; 2] = ["READ COMMITTED", "SERIALIZABLE"];

/// The test's own server, so that its statistics contain nothing else.
pub struct OwnServer {
    _server: Server,
    pub url: String,
    pub pool: PgPool,
}

impl OwnServer {
    pub async fn start(settings: &[(&str, &str)]) -> Option<Self> {
        let mut config = server_config();
        config.durable = false;
        config.settings = settings.iter().map(|(name, value)| ((*name).into(), (*value).into())).collect();
        let server = tokio::task::spawn_blocking(move || Server::start(&config)).await.expect("a task").ok()?;
        let url = server.url("postgres");
        let pool = PgPoolOptions::new().max_connections(16).connect(&url).await.expect("connect");
        pg_limiter::migrate::migrate(&pool).await.expect("migrate");
        Some(Self { _server: server, url, pool })
    }

    /// A server that logs to a file, with the default settings for errors.
    pub async fn logging(settings: &[(&str, &str)]) -> Self {
        let logging = [("logging_collector", "on"), ("log_line_prefix", "~~~ "), ("log_rotation_size", "0")];
        Self::start(&[&logging, settings].concat()).await.expect("a server")
    }

    pub async fn count(&self, sql: &'static str) -> i64 {
        sqlx::query_scalar(sql).fetch_one(&self.pool).await.expect("a count")
    }

    /// The entries of its log. Each begins with its severity, and its lines follow.
    pub async fn log(&self) -> Vec<String> {
        let sql = "SELECT pg_catalog.pg_read_file(pg_catalog.pg_current_logfile('stderr'))";
        let log: String = sqlx::query_scalar(sql).fetch_one(&self.pool).await.expect("the log");
        log.split("~~~ ").map(str::to_owned).collect()
    }
}

/// Calls of every kind, with 150 different deadlines.
async fn mixed_calls(server: &OwnServer) {
    let limits = Limits::new()
        .define("bucket", Limit::token_bucket(1_000_000, CENTURY))
        .and_then(|limits| limits.define("sharded", Limit::token_bucket(1_000_000, CENTURY).shards(4)))
        .and_then(|limits| limits.define("sliding", Limit::sliding_window(1_000_000, CENTURY)))
        .expect("limits");
    for nth in 0..150_u64 {
        let mut config = LimiterConfig::default();
        config.retry.deadline = Duration::from_millis(2_000 + 67 * nth);
        config.lanes = 1 + usize::from(nth % 2 == 0);
        config.connections = if nth % 3 == 0 { Connections::Own } else { Connections::Pool };
        config.isolation = if nth % 5 == 0 { Isolation::ReadCommitted } else { Isolation::Serializable };
        let limiter = Limiter::with_config(server.pool.clone(), limits.clone(), config);
        let key = format!("u{}", nth % 7);
        let key = key.as_str();
        let _ = limiter.limit(("bucket", key)).await.expect("a decision");
        let group = || Call::from([Item::new("bucket", key), Item::new("sliding", key), Item::new("sharded", key)]);
        let _ = limiter.limit(group()).await.expect("a decision");
        let _ = limiter.limit(Call::from(("bucket", key)).idempotency_key(nth.to_string())).await.expect("a decision");
        let _ = limiter.check(("sliding", key)).await.expect("a decision");
        let _ = limiter.peek(("sharded", key)).await.expect("balances");
        let _ = limiter.charge(("bucket", key)).await.expect("balances");
        let _ = limiter.credit(("bucket", key)).await.expect("balances");
        let _ = limiter.reset_all_keys("none").await.expect("a count");
        let mut tx = server.pool.begin().await.expect("begin");
        let _ = limiter.within(&mut tx).limit(group()).await.expect("a decision");
        let _ = limiter.within(&mut tx).limit(("bucket", key)).await.expect("a decision");
        tx.commit().await.expect("commit");
        if nth % 15 == 0 {
            let queue = Queue::new(&limiter, "q").expect("a queue");
            let _ = queue.enqueue(Job::new(("bucket", key), &1).expect("a job")).await.expect("an answer");
            work_off(&queue, 1).await;
        }
        limiter.close().await;
    }
}

async fn work_off(queue: &Queue, workers: usize) {
    let worker = || async {
        let mut config = WorkerConfig::default();
        config.concurrency = 4;
        let handler = handler_fn(|_, _| Box::pin(async { Ok(Finish::Done) }));
        let pool = queue.limiter().pool();
        let until_done = async {
            let left = "SELECT EXISTS (SELECT FROM rate_limit.jobs WHERE state <> 'done')";
            while sqlx::query_scalar(left).fetch_one(pool).await.expect("a look") {
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        };
        queue.worker(config, handler).expect("a worker").run(until_done).await.expect("a report")
    };
    let work = join_all((0..workers).map(|_| worker()));
    let _ = tokio::time::timeout(Duration::from_secs(120), work).await.expect("in time");
}

/// Counted by `pg_stat_statements` if it is installed, and otherwise from the log of all statements.
#[tokio::test]
async fn the_number_of_distinct_statements_does_not_grow_with_the_calls() {
    let statistics = [("shared_preload_libraries", "pg_stat_statements")];
    let texts = if let Some(server) = OwnServer::start(&statistics).await {
        let fresh = "CREATE EXTENSION pg_stat_statements; SELECT pg_stat_statements_reset()";
        sqlx::raw_sql(fresh).execute(&server.pool).await.expect("the extension");
        mixed_calls(&server).await;
        let sql = "SELECT query FROM pg_stat_statements";
        sqlx::query_scalar(sql).fetch_all(&server.pool).await.expect("the statements")
    } else {
        eprintln!("pg_stat_statements is not installed: reading the log instead");
        let server = OwnServer::logging(&[("log_statement", "all")]).await;
        let before = server.log().await.len();
        mixed_calls(&server).await;
        let log = server.log().await.into_iter().skip(before).filter(|entry| entry.starts_with("LOG:"));
        // "execute sqlx_s_7: SELECT ..", "statement: BEGIN; .."
        let texts = log.filter_map(|entry| Some(entry.split_once(": ")?.1.split_once(": ")?.1.trim().to_owned()));
        texts.flat_map(|text| text.split("; ").map(str::to_owned).collect::<Vec<_>>()).collect()
    };
    let texts: HashSet<String> = texts.into_iter().collect();
    let settings = texts.iter().filter(|text| text.starts_with("SET ")).count();
    assert!(settings > 0, "{texts:#?}");
    assert!(settings <= 12, "{settings} distinct SET: {texts:#?}");
    assert!(texts.len() <= 70, "{} distinct statements: {texts:#?}", texts.len());
}

async fn session(url: &str, level: &str) -> PgConnection {
    let mut session = PgConnection::connect(url).await.expect("connect");
    let sql = format!("SET default_transaction_isolation = '{level}'");
    session.execute(AssertSqlSafe(sql)).await.expect("a level");
    session
}

/// A call on one bucket as a client sends it, the same as SQL users write it, and several buckets in one statement.
const ONE: &str =
    "rate_limit._decide_one('hot', 'k', 'token_bucket', 1e6, 3155760000000000, 1e6, NULL, NULL, 1, 1, 1, 1, false)";
const RATE_LIMIT: &str = "rate_limit.limit_with('hot', 'k', 'token_bucket', 1e6, '36525 days')";
const BATCH: &str =
    "rate_limit._decide(ARRAY['token_bucket'], ARRAY[1e6::float8], ARRAY[3155760000000000], NULL, NULL, NULL,
    NULL, NULL, ARRAY['hot', 'hot', 'hot'], ARRAY['k', 'l', 'm'], NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL)";
const GROUP: &str =
    "rate_limit._decide(ARRAY['token_bucket'], ARRAY[1e6::float8], ARRAY[3155760000000000], NULL, NULL, NULL,
    NULL, NULL, ARRAY['hot', 'hot', 'hot'], ARRAY['k', 'l', 'm'], NULL, NULL, NULL, NULL, NULL, ARRAY[3], NULL, NULL)";
const SHARDED: &str =
    "rate_limit._decide_one('sharded', 'k', 'token_bucket', 1e6, 3155760000000000, 1e6, NULL, NULL, 1, 4, 1, 1, false)";
const SLIDING: &str = "rate_limit.limit_with('sliding', 'k', 'sliding_window', 1e6, '36525 days')";
const FIXED: &str = "rate_limit.limit_with('fixed', 'k', 'fixed_window', 1e6, '36525 days')";
const CALLS: [(&str, usize); 7] =
    [(ONE, 1), (RATE_LIMIT, 1), (BATCH, 3), (GROUP, 3), (SHARDED, 1), (SLIDING, 1), (FIXED, 1)];

const CALLERS: usize = 6;
const EACH: usize = 10;

/// Every caller locks the row for longer than the maximum age of a clock reading.
#[tokio::test]
async fn a_contended_read_committed_decision_writes_each_row_once() {
    for (call, rows) in CALLS {
        let database = Database::migrated().await;
        let sql = format!("SELECT FROM {call} AS d");
        for _ in 0..2 {
            sqlx::query(AssertSqlSafe(sql.clone())).execute(&database.pool).await.expect("rows");
        }
        database
            .execute(
                "CREATE SEQUENCE writes;
                 CREATE FUNCTION count_write() RETURNS trigger LANGUAGE plpgsql AS
                 $$ BEGIN PERFORM nextval('public.writes'); RETURN NULL; END $$;
                 CREATE TRIGGER counted AFTER UPDATE ON rate_limit.rate_limits FOR EACH ROW EXECUTE FUNCTION count_write()",
            )
            .await;
        // If the machine pauses a statement for a millisecond, it writes once more, which is correct.
        let mut least = f64::INFINITY;
        for _ in 0..5 {
            least = least.min(writes_for_each_row(&database, &sql, rows).await);
            if least <= 1.05 {
                break;
            }
        }
        assert!((1.0..=1.05).contains(&least), "{call}: {least} updates for each row of a decision");
    }
}

async fn writes_for_each_row(database: &Database, sql: &str, rows: usize) -> f64 {
    database.execute("ALTER SEQUENCE writes RESTART").await;
    let callers = (0..CALLERS).map(|_| async {
        let mut caller = session(&database.url, "READ COMMITTED").await;
        for _ in 0..EACH {
            let mut tx = caller.begin().await.expect("begin");
            sqlx::query(AssertSqlSafe(sql.to_owned())).execute(&mut *tx).await.expect("a decision");
            sqlx::query("SELECT pg_sleep(0.004)").execute(&mut *tx).await.expect("a pause");
            tx.commit().await.expect("commit");
        }
    });
    join_all(callers).await;
    let writes: i64 =
        sqlx::query_scalar("SELECT last_value FROM writes").fetch_one(&database.pool).await.expect("a count");
    #[expect(clippy::cast_precision_loss, reason = "small")]
    let each = writes as f64 / (CALLERS * EACH * rows) as f64;
    each
}

/// The server logs the whole text of a statement inside a function as the context of its error.
#[tokio::test]
async fn a_conflict_takes_little_room_in_the_log() {
    let server = OwnServer::logging(&[]).await;
    for (call, _) in CALLS {
        let sql = format!("SELECT FROM {call} AS d");
        sqlx::query(AssertSqlSafe(sql.clone())).execute(&server.pool).await.expect("rows");
        for what_failed in [Failing::Update, Failing::Read] {
            what_failed.provoke(&server, &sql).await;
        }
    }
    let log = server.log().await;
    // An entry is a message with its DETAIL, HINT, CONTEXT and STATEMENT, up to the next message.
    let mut entries: Vec<String> = Vec::new();
    for line in log {
        let follows = ["DETAIL", "HINT", "CONTEXT", "STATEMENT"].iter().any(|kind| line.starts_with(kind));
        match entries.last_mut() {
            Some(entry) if follows => entry.push_str(&line),
            _ => entries.push(line),
        }
    }
    entries.retain(|entry| entry.contains("could not serialize access"));
    assert!(entries.len() >= CALLS.len(), "{entries:#?}");
    let largest = entries.iter().max_by_key(|entry| entry.len()).expect("some");
    eprintln!("the largest of {} entries has {} bytes", entries.len(), largest.len());
    assert!(largest.len() < 2_048, "{} bytes: {largest}", largest.len());
}

#[derive(Clone, Copy)]
enum Failing {
    /// Another transaction has changed the row since the snapshot.
    Update,
    /// Each of two transactions has read what the other one writes: either may fail at its next read or write.
    Read,
}

impl Failing {
    async fn provoke(self, server: &OwnServer, sql: &str) {
        let mut one = session(&server.url, "SERIALIZABLE").await;
        let mut tx = one.begin().await.expect("begin");
        let look = match self {
            Self::Update => "SELECT 1",
            Self::Read => "SELECT count(*) FROM rate_limit.rate_limits",
        };
        tx.execute(look).await.expect("a snapshot");
        let mut other = session(&server.url, "SERIALIZABLE").await;
        let mut rival = other.begin().await.expect("begin");
        rival.execute(look).await.expect("a snapshot");
        rival.execute(AssertSqlSafe(sql.to_owned())).await.expect("a decision");
        rival.commit().await.expect("commit");
        let failed = tx.execute(AssertSqlSafe(sql.to_owned())).await.map(|_| ());
        let code = failed.as_ref().err().and_then(|error| error.as_database_error()?.code()).unwrap_or_default();
        // A call on a sharded bucket may draw a different row.
        assert!(code == "40001" || sql.contains("sharded"), "{sql}: {failed:?}");
        tx.rollback().await.expect("rollback");
    }
}

/// The functions that consist of a single expression or query.
const EXPRESSIONS: [&str; 29] = [
    "_asked",
    "_asked_slots",
    "_calendar_window_idle_at",
    "_calendar_window_wait",
    "_clock",
    "_counts_after",
    "_fits",
    "_fixed_window_idle_at",
    "_fixed_window_value",
    "_fixed_window_wait",
    "_grid",
    "_idle_after",
    "_in_range",
    "_is_exact",
    "_left",
    "_phase",
    "_sliding_window_earlier",
    "_sliding_window_grid",
    "_sliding_window_idle_after",
    "_sliding_window_left_at",
    "_sliding_window_passed",
    "_sliding_window_value",
    "_token_bucket_idle_at",
    "_token_bucket_value",
    "_token_bucket_wait",
    "_two_counters_before",
    "_two_counters_now",
    "_value_after",
    "_window_start",
];

/// The server counts function calls, but not those that the planner has inlined.
#[tokio::test]
async fn single_expression_functions_are_inlined() {
    let database = Database::migrated().await;
    for level in LEVELS {
        let mut session = session(&database.url, level).await;
        session.execute("SET track_functions = 'all'").await.expect("a superuser");
        let mut tx = session.begin().await.expect("begin");
        // Often enough for generic plans.
        for nth in 0..12 {
            let reserving =
                "rate_limit._decide_one('reserved', 'k', 'token_bucket', 1, 1000000, 1, NULL, NULL, 1, 1, 1, 1, true)";
            let reserving_both = BATCH.replace("'hot'", "'both'").replace("1e6::float8", "1::float8").replacen(
                "NULL, NULL, NULL, NULL, NULL)",
                "NULL, ARRAY[true, true, true], NULL, NULL, NULL)",
                1,
            );
            let new = BATCH.replace("'k'", &format!("'k{nth}'"));
            let sharded = BATCH.replacen("NULL, NULL, ARRAY", "NULL, ARRAY[4], ARRAY", 1).replace("'hot'", "'sharded'");
            let calls = CALLS.iter().map(|(call, _)| *call);
            for call in calls.chain([reserving, &reserving_both, &new, &sharded]) {
                let sql = format!("SELECT FROM {call} AS d");
                tx.execute(AssertSqlSafe(sql)).await.unwrap_or_else(|error| panic!("{call}: {error}"));
            }
        }
        let sql = "SELECT funcname::text FROM pg_stat_xact_user_functions ORDER BY 1";
        let called: Vec<String> = sqlx::query_scalar(sql).fetch_all(&mut *tx).await.expect("the functions");
        for function in ["_decide", "_decide_one"] {
            assert!(called.iter().any(|name| name == function), "{level}: {called:?}");
        }
        let sql =
            "SELECT proname::text FROM pg_proc WHERE pronamespace = 'rate_limit'::regnamespace AND proname = ANY ($1)";
        let there: Vec<String> = sqlx::query_scalar(sql).bind(EXPRESSIONS).fetch_all(&mut *tx).await.expect("names");
        assert_eq!(there.len(), EXPRESSIONS.len(), "{there:?}");
        let left: Vec<_> = EXPRESSIONS.iter().filter(|name| called.iter().any(|called| called == **name)).collect();
        assert!(left.is_empty(), "{level}: not inlined: {left:?}");
    }
}

/// Every reader of a row with a multixact has to look it up, and multixact ids need a vacuum before they wrap around.
#[tokio::test]
async fn workers_create_few_multixacts() {
    const JOBS: usize = 300;
    let server = OwnServer::start(&[]).await.expect("a server");
    let limits = Limits::new().define("fast", Limit::token_bucket(1_000_000, Duration::from_secs(1))).expect("limits");
    let limiter = Limiter::new(server.pool.clone(), limits);
    let queue = Queue::new(&limiter, "q").expect("a queue");
    let enqueued = (0..JOBS).map(|nth| queue.enqueue(Job::new(("fast", format!("g{}", nth % 10)), &1).expect("a job")));
    for answer in join_all(enqueued).await {
        assert!(!answer.expect("an answer").is_denied());
    }
    let before = multixacts(&server).await;
    work_off(&queue, 3).await;
    let made = multixacts(&server).await - before;
    assert!(made <= 10, "{made} multixacts for {JOBS} jobs");
}

async fn multixacts(server: &OwnServer) -> i64 {
    sqlx::raw_sql("CHECKPOINT").execute(&server.pool).await.expect("a checkpoint");
    server.count("SELECT next_multixact_id::text::bigint FROM pg_catalog.pg_control_checkpoint()").await
}

#[tokio::test]
async fn every_function_has_a_comment() {
    let database = Database::migrated().await;
    let sql = "SELECT oid::regprocedure::text, coalesce(obj_description(oid, 'pg_proc'), '') FROM pg_proc
         WHERE pronamespace = 'rate_limit'::regnamespace ORDER BY 1";
    let functions: Vec<(String, String)> = sqlx::query_as(sql).fetch_all(&database.pool).await.expect("the functions");
    assert!(functions.len() > 30, "{functions:?}");
    let without: Vec<_> = functions.iter().filter(|(_, comment)| comment.is_empty()).collect();
    assert!(without.is_empty(), "{without:?}");
    let unplain = |comment: &str| !comment.ends_with('.') || comment.matches(". ").count() > 0 || comment.len() > 120;
    let not_one_sentence: Vec<_> = functions.iter().filter(|(_, comment)| unplain(comment)).collect();
    assert!(not_one_sentence.is_empty(), "{not_one_sentence:?}");
}

/// A client that hammers an exhausted limit causes no writes: with single calls, with groups of several limits, and in batches.
#[tokio::test(flavor = "multi_thread")]
async fn hammered_denials_write_nothing() {
    const TIMES: i64 = 300;
    let server = OwnServer::start(&[("autovacuum", "off"), ("full_page_writes", "off")]).await.expect("a server");
    let limits = Limits::new()
        .define("bucket", Limit::token_bucket(1, CENTURY))
        .and_then(|limits| limits.define("fixed", Limit::fixed_window(1, CENTURY)))
        .and_then(|limits| limits.define("sliding", Limit::sliding_window(1, CENTURY)))
        .and_then(|limits| limits.define("ample", Limit::token_bucket(1_000_000, CENTURY)))
        .expect("limits");
    for isolation in [Isolation::Serializable, Isolation::ReadCommitted] {
        let mut config = LimiterConfig::default();
        config.isolation = isolation;
        let limiter = Limiter::with_config(server.pool.clone(), limits.clone(), config);
        let calls = || {
            let kinds = ["bucket", "fixed", "sliding"];
            let lone = kinds.map(|kind| Call::from((kind, "k")));
            let groups = kinds.map(|kind| Call::from([Item::new("ample", kind), Item::new(kind, "k")]));
            let all = Call::from(kinds.map(|kind| Item::new(kind, "k")));
            lone.into_iter().chain(groups).chain([all])
        };
        let denied = async |call: Call| assert!(limiter.limit(call).await.expect("a decision").is_denied());
        for call in calls() {
            let _ = limiter.charge(call).await.expect("a charge");
        }
        let wal = "SELECT (pg_current_wal_insert_lsn() - '0/0')::bigint";
        for form in ["alone", "together", "in a transaction"] {
            let hammer = async || {
                for _ in 0..TIMES / 30 {
                    match form {
                        "alone" => {
                            for call in calls() {
                                denied(call).await;
                            }
                        }
                        "together" => {
                            join_all((0..30).flat_map(|_| calls()).map(denied)).await;
                        }
                        _ => {
                            let mut tx = server.pool.begin().await.expect("begin");
                            for call in calls() {
                                assert!(limiter.within(&mut tx).limit(call).await.expect("a decision").is_denied());
                            }
                            tx.commit().await.expect("commit");
                        }
                    }
                }
            };
            hammer().await; // Now the process remembers which limits are exhausted.
            let before = server.count(wal).await;
            hammer().await;
            let written = server.count(wal).await - before;
            // From time to time, the server itself logs the running transactions to the WAL.
            assert!(written < 1_000, "{isolation:?}, {form}: {written} bytes for {} denials", TIMES / 30 * 7);
        }
    }
}
