//! Databases with planner settings that suit other queries: every function still reads the rows that it needs, and no more.

use std::time::Duration;

use pg_limiter::queue::{Job, Queue};
use pg_limiter::sqlx::{AssertSqlSafe, Connection, PgConnection};
use pg_limiter::{Call, Error, Item, Limit, Limiter, Limits};

use crate::support::{Database, sqlx};

const HOUR: Duration = Duration::from_secs(3600);

/// Settings, each with the first server version that has it.
const HOSTILE: &[(u32, &str)] = &[
    (11, "enable_indexscan = off"),
    (11, "enable_indexonlyscan = off"),
    (11, "enable_nestloop = off"),
    (11, "enable_sort = off"),
    (11, "enable_material = off"),
    (11, "enable_tidscan = off"),
    (11, "enable_hashagg = off"),
    (13, "enable_incremental_sort = off"),
    (14, "enable_memoize = off"),
    (11, "from_collapse_limit = 1"),
    (11, "join_collapse_limit = 1"),
    (11, "random_page_cost = 1000"),
    (11, "cpu_index_tuple_cost = 1000"),
    (11, "work_mem = '64kB'"),
    (11, "effective_cache_size = '8kB'"),
    (11, "default_statistics_target = 1"),
    (11, "constraint_exclusion = on"),
    (11, "cursor_tuple_fraction = 1"),
    (11, "geqo_threshold = 2"),
    (11, "parallel_setup_cost = 0"),
    (11, "parallel_tuple_cost = 0"),
    (11, "min_parallel_table_scan_size = 0"),
    (11, "min_parallel_index_scan_size = 0"),
];

fn limits() -> Limits {
    let limits = Limits::new()
        .define("bucket", Limit::token_bucket(1000, HOUR))
        .and_then(|limits| limits.define("window", Limit::fixed_window(1000, HOUR)))
        .and_then(|limits| limits.define("sliding", Limit::sliding_window(1000, HOUR).resolution(6)))
        .and_then(|limits| limits.define("sharded", Limit::token_bucket(1000, HOUR).shards(4)));
    limits.expect("limits")
}

/// 100,000 buckets, 40,000 jobs in 4,000 groups, 20,000 answers.
const FILL: &str = "
    INSERT INTO rate_limit.rate_limits (name, key, shard, shards, value, ts, idle_at, detail)
    SELECT n, 'k' || g, 0, 1, 500, c, c + 3600000000,
           CASE WHEN n = 'sliding' THEN ARRAY[3600000000, 0, 1000, 0, 0, 0, 0, 0, 0] END
    FROM unnest(ARRAY['bucket', 'window', 'sliding']) AS n CROSS JOIN generate_series(1, 20000) AS g
    CROSS JOIN rate_limit._clock() AS c;
    INSERT INTO rate_limit.rate_limits (name, key, shard, shards, value, ts, idle_at)
    SELECT 'sharded', 'k' || g, s, 4, 125, c, c + 3600000000
    FROM generate_series(1, 10000) AS g CROSS JOIN generate_series(0, 3) AS s CROSS JOIN rate_limit._clock() AS c;
    INSERT INTO rate_limit.jobs (queue, key, state, run_at, payload, limit_names, limit_keys, counts, max_attempts, enqueued_at,
                                 finished_at, unique_id)
    SELECT 'q', 'k' || g % 4000, CASE WHEN g % 4 = 0 THEN 'done' ELSE 'scheduled' END, c + 1000000 * (g - 100)::bigint, '1',
           ARRAY['bucket'], ARRAY['k' || g % 4000], ARRAY[1], 3, c, CASE WHEN g % 4 = 0 THEN c END, 'id' || g
    FROM generate_series(1, 40000) AS g CROSS JOIN rate_limit._clock() AS c;
    INSERT INTO rate_limit.groups (queue, key) SELECT 'q', 'k' || g FROM generate_series(1, 4000) AS g;
    INSERT INTO rate_limit.answers (idempotency_key, asked, item_values, expires_at)
    SELECT 'old' || g, 0, '{1}', c + 3600000000 FROM generate_series(1, 20000) AS g CROSS JOIN rate_limit._clock() AS c;
    ANALYZE rate_limit.rate_limits, rate_limit.jobs, rate_limit.groups, rate_limit.answers";

async fn rows_read(conn: &mut PgConnection) -> i64 {
    let sql = "SELECT coalesce(sum(seq_tup_read + coalesce(idx_tup_fetch, 0)), 0)::bigint FROM pg_stat_xact_user_tables \
               WHERE schemaname = 'rate_limit'";
    sqlx::query_scalar(sql).fetch_one(conn).await.expect("the rows read")
}

const TAKES_LIMITS: &str =
    "ARRAY['bucket'], ARRAY['token_bucket'], ARRAY[1000.0]::float8[], ARRAY[3600000000], NULL, NULL";

fn queue_statements() -> [(i64, String); 9] {
    [
        (600, format!("SELECT * FROM rate_limit._claim('q', 'w', 16, 0, 60000000, 60000000, {TAKES_LIMITS})")),
        (400, "SELECT * FROM rate_limit._jobs_lapsed('q', 16)".into()),
        (250, "SELECT rate_limit._jobs_prune('q', 0, 16)".into()),
        (250, "SELECT rate_limit._jobs_prune('q', 3600000000, 16)".into()),
        (100, "SELECT rate_limit._dead_jobs_prune('q', 0, 16)".into()),
        (100, "SELECT * FROM rate_limit._jobs_discard('q', ARRAY[1, 2, 3])".into()),
        (100, "SELECT rate_limit._prune_answers(16)".into()),
        (100, "SELECT * FROM rate_limit.prune(16, 'bucket', 'k5', 0)".into()),
        (100, "SELECT rate_limit.reset('bucket', 'k77')".into()),
    ]
}

/// Runs every kind of call and every statement of the queue on this connection, and returns those that read more rows than
/// they have to.
async fn too_many_rows(conn: &mut PgConnection, limiter: &Limiter, isolation: &str) -> Vec<String> {
    let mut found = calls_reading_too_many_rows(conn, limiter, isolation).await;
    found.extend(statements_reading_too_many_rows(conn).await);
    found
}

async fn calls_reading_too_many_rows(conn: &mut PgConnection, limiter: &Limiter, isolation: &str) -> Vec<String> {
    let mut found = Vec::new();
    let mut key = 100;
    let group = |key: u32| ["bucket", "window", "sliding", "sharded"].map(|name| Item::new(name, format!("k{key}")));
    for what in [
        "bucket",
        "window",
        "sliding",
        "sharded",
        "new",
        "group",
        "many",
        "reserve",
        "once",
        "check",
        "peek",
        "credit",
        "charge",
        "reset",
        "denied",
        "enqueue",
        "enqueue all",
        "estimate",
        "cancel",
        "settle",
    ] {
        key += 100;
        sqlx::query(AssertSqlSafe(format!("BEGIN ISOLATION LEVEL {isolation}")))
            .execute(&mut *conn)
            .await
            .expect("begin");
        let before = rows_read(conn).await;
        let within = limiter.within(&mut *conn);
        let queue = Queue::new(limiter, "q").expect("a queue");
        let job = |key: u32| Job::new(("bucket", format!("k{key}")), &1).expect("a job");
        let job_id = i64::from(key) * 4 + 2; // From a group of ten.
        let done: Result<(), Error> = match what {
            "new" => within.limit(("bucket", "a new one")).await.map(drop),
            "group" => within.limit(group(key)).await.map(drop),
            "many" => {
                let items: Vec<_> = (0..8).flat_map(|nth| group(key + nth)).collect();
                within.limit(items).await.map(drop)
            }
            "reserve" => within.limit(Call::from(("bucket", format!("k{key}"), 900.0)).reserve()).await.map(drop),
            "once" => within.limit(Call::from(group(key).to_vec()).idempotency_key("1")).await.map(drop),
            "check" => within.check(group(key)).await.map(drop),
            "peek" => within.peek(group(key)).await.map(drop),
            "credit" => within.credit(group(key)).await.map(drop),
            "charge" => within.charge(group(key)).await.map(drop),
            "reset" => within.reset(group(key)).await,
            "denied" => within.limit(("sharded", format!("k{key}"), 900.0)).await.map(drop),
            "enqueue" => queue.within(conn).enqueue(job(key)).await.map(drop),
            "enqueue all" => queue.within(conn).enqueue_all((0..8).map(|nth| job(key + nth))).await.map(drop),
            "estimate" => queue.within(conn).estimate(job(key)).await.map(drop),
            "cancel" => queue.within(conn).cancel(job_id).await.map(drop),
            "settle" => queue.within(conn).settle(job_id, ("bucket", format!("k{key}"), 2.0)).await.map(drop),
            name => within.limit((name, format!("k{key}"))).await.map(drop),
        };
        // Other tests check whether a reset or a settlement succeeds.
        match &done {
            Err(error) if !matches!(what, "reset" | "settle") => found.push(format!("{what} at {isolation}: {error}")),
            _ => {}
        }
        let read = if done.is_ok() || what == "settle" { rows_read(conn).await - before } else { 0 };
        let most = if matches!(what, "many" | "enqueue all" | "cancel") { 600 } else { 100 };
        if read > most {
            found.push(format!("{what} at {isolation} read {read} rows"));
        }
        sqlx::query("ROLLBACK").execute(&mut *conn).await.expect("rollback");
    }
    found
}

async fn statements_reading_too_many_rows(conn: &mut PgConnection) -> Vec<String> {
    let mut found = Vec::new();
    for (most, sql) in queue_statements() {
        sqlx::query("BEGIN ISOLATION LEVEL READ COMMITTED").execute(&mut *conn).await.expect("begin");
        let before = rows_read(conn).await;
        sqlx::query(AssertSqlSafe(sql.clone()))
            .fetch_all(&mut *conn)
            .await
            .unwrap_or_else(|error| panic!("{sql}: {error}"));
        let read = rows_read(conn).await - before;
        if read > most {
            found.push(format!("{sql} read {read} rows"));
        }
        sqlx::query("ROLLBACK").execute(&mut *conn).await.expect("rollback");
    }
    found
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "takes long: run tests/long"]
async fn no_planner_setting_of_the_database_makes_a_call_read_a_whole_table() {
    let database = Database::migrated().await;
    database.execute(FILL).await;
    let limiter = database.limiter(limits());
    let version: i32 = sqlx::query_scalar("SELECT current_setting('server_version_num')::integer / 10000")
        .fetch_one(&database.pool)
        .await
        .expect("a version");
    let known: Vec<&str> =
        HOSTILE.iter().filter(|(since, _)| *since <= version.unsigned_abs()).map(|(_, setting)| *setting).collect();
    // Each setting alone, all together, and all together with either kind of plan.
    let mut profiles: Vec<Vec<&str>> =
        std::iter::once(vec![]).chain(known.iter().map(|setting| vec![*setting])).collect();
    profiles.push(known.clone());
    if version >= 12 {
        for mode in ["plan_cache_mode = force_generic_plan", "plan_cache_mode = force_custom_plan"] {
            profiles.push(vec![mode]);
            profiles.push(known.iter().copied().chain([mode]).collect());
        }
    }
    // Not with the others: the test's own queries would also be compiled, which would take most of the time.
    profiles.push(vec!["jit = on", "jit_above_cost = 0", "enable_indexscan = off"]);
    let mut found = Vec::new();
    for profile in profiles {
        let mut conn = PgConnection::connect(&database.url).await.expect("connect");
        for setting in &profile {
            sqlx::query(AssertSqlSafe(format!("SET {setting}"))).execute(&mut conn).await.expect("set");
        }
        if !profile.iter().any(|setting| setting.starts_with("jit")) {
            sqlx::query("SET jit = off").execute(&mut conn).await.expect("set"); // As above.
        }
        for isolation in ["READ COMMITTED", "SERIALIZABLE"] {
            let reads = too_many_rows(&mut conn, &limiter, isolation).await;
            found.extend(reads.into_iter().map(|read| format!("{read}, with {}", profile.join(", "))));
        }
        conn.close().await.expect("close");
    }
    assert!(found.is_empty(), "{} of them:\n{}", found.len(), found.join("\n"));
}

/// A session keeps its plans for as long as it lives, and the tables grow meanwhile. Without new statistics, nothing makes it
/// plan again. (The statements that claim, cancel and prune jobs join tables, and rely on statistics.)
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "takes long: run tests/long"]
async fn plans_made_on_empty_tables_read_no_more_of_a_million_rows() {
    let database = Database::migrated().await;
    let limiter = database.limiter(limits());
    let no_statistics = "ALTER TABLE rate_limit.rate_limits SET (autovacuum_enabled = off);
        ALTER TABLE rate_limit.jobs SET (autovacuum_enabled = off);
        ALTER TABLE rate_limit.groups SET (autovacuum_enabled = off);
        ALTER TABLE rate_limit.answers SET (autovacuum_enabled = off)";
    database.execute(no_statistics).await;
    let profiles: [&[&str]; 4] = [
        &["plan_cache_mode = auto"],
        &["plan_cache_mode = force_generic_plan"],
        &["plan_cache_mode = force_custom_plan"],
        &["plan_cache_mode = auto", "jit = on", "jit_above_cost = 0"],
    ];
    let mut sessions = Vec::new();
    for profile in profiles {
        let mut conn = PgConnection::connect(&database.url).await.expect("connect");
        for setting in profile {
            sqlx::query(AssertSqlSafe(format!("SET {setting}"))).execute(&mut conn).await.expect("set");
        }
        // After five plans for their arguments, statements may get one for all arguments.
        for _ in 0..6 {
            for isolation in ["READ COMMITTED", "SERIALIZABLE"] {
                calls_reading_too_many_rows(&mut conn, &limiter, isolation).await; // There is no job to cancel yet.
            }
        }
        sessions.push(conn);
    }
    let (fill, _analyze) = FILL.rsplit_once(';').expect("it ends with ANALYZE");
    database.execute(fill).await;
    let more = "INSERT INTO rate_limit.rate_limits (name, key, shard, shards, value, ts, idle_at)
        SELECT 'bucket', 'm' || g, 0, 1, 500, c, c + 3600000000
        FROM generate_series(1, 900000) AS g CROSS JOIN rate_limit._clock() AS c";
    database.execute(more).await;
    let mut found = Vec::new();
    for (conn, profile) in sessions.iter_mut().zip(profiles) {
        for isolation in ["READ COMMITTED", "SERIALIZABLE"] {
            let reads = calls_reading_too_many_rows(conn, &limiter, isolation).await;
            let reads = reads.into_iter().filter(|read| !read.starts_with("cancel"));
            found.extend(reads.map(|read| format!("{read}, with {}", profile.join(", "))));
        }
    }
    assert!(found.is_empty(), "{} of them:\n{}", found.len(), found.join("\n"));
}

/// A session's statistics are written when it ends.
#[tokio::test]
async fn a_look_at_one_job_and_the_end_of_a_wait_read_no_other_jobs() {
    let database = Database::migrated().await;
    let fill = "ALTER TABLE rate_limit.jobs SET (autovacuum_enabled = off);
        INSERT INTO rate_limit.jobs (queue, key, run_at, payload, limit_names, limit_keys, counts, max_attempts, enqueued_at)
        SELECT 'q', 'k', c + 3600000000 + g, '1', ARRAY['bucket'], ARRAY['k'], ARRAY[1], 3, c
        FROM generate_series(1, 20000) AS g, rate_limit._clock() AS c;
        INSERT INTO rate_limit.groups (queue, key, held_until) VALUES ('q', 'k', rate_limit._clock() + 7200000000);
        ANALYZE rate_limit.jobs";
    database.execute(fill).await;
    let reads = "SELECT coalesce(seq_tup_read, 0) + coalesce(idx_tup_fetch, 0), coalesce(idx_tup_fetch, 0)
        FROM pg_stat_user_tables WHERE relid = 'rate_limit.jobs'::regclass";
    let reads = async || -> (i64, i64) { sqlx::query_as(reads).fetch_one(&database.pool).await.expect("the counts") };
    let (before, fetched_before) = reads().await;
    let pool = Database::pool(&database.url, 1).await;
    let queue = Queue::new(&Limiter::new(pool.clone(), limits()), "q").expect("a queue");
    for id in 1..=8 {
        let job = queue.job(id).await.expect("an answer").expect("a job");
        assert!(job.id == id && job.waiting_until.is_some());
    }
    assert!(queue.resume_group("k").await.expect("an answer"));
    assert_eq!(queue.job(9).await.expect("an answer").expect("a job").waiting_until, None);
    pool.close().await;
    let began = std::time::Instant::now();
    while reads().await.1 < fetched_before + 9 {
        assert!(began.elapsed().as_secs() < 60, "the statistics of the session were not written");
        tokio::time::sleep(std::time::Duration::from_millis(50)).await;
    }
    assert!(reads().await.0 - before <= 40, "{} rows read", reads().await.0 - before);
}

/// Statistics of a quiet moment, in which no job ran or waited: the index of such jobs then seems to be the best way to find any
/// of them, and later has a thousand times as many.
#[tokio::test]
async fn jobs_are_found_by_their_ids_whatever_the_statistics_say() {
    const JOBS: &str = "INSERT INTO rate_limit.jobs (queue, key, state, starts, run_at, payload, limit_names, limit_keys, counts,
                                                     max_attempts, enqueued_at, lease_until, finished_at)
        SELECT 'q', 'k' || g % 4000, s, 1, c - 1000000 + g, '1', ARRAY['bucket'], ARRAY['k' || g % 4000], ARRAY[1], 3, c,
               CASE WHEN s = 'running' THEN c + 3600000000 END, CASE WHEN s IN ('done', 'dead') THEN c END";
    let database = Database::migrated().await;
    let few = format!(
        "ALTER TABLE rate_limit.jobs SET (autovacuum_enabled = off);
         {JOBS} FROM generate_series(1, 1000) AS g, unnest(ARRAY['done']) AS s, rate_limit._clock() AS c;
         ANALYZE rate_limit.jobs"
    );
    database.execute(&few).await;
    let mut sessions = Vec::new();
    for _ in 0..2 {
        sessions.push(PgConnection::connect(&database.url).await.expect("connect"));
    }
    let statements = [
        (10, format!("SELECT rate_limit._job_done(1500, 1, {TAKES_LIMITS})")),
        (10, "SELECT * FROM rate_limit._claimed_jobs(ARRAY[1501, 1502], ARRAY[1, 1])".into()),
        (10, "SELECT * FROM rate_limit._job_extend(ARRAY[1501, 1502], ARRAY[1, 1], 1000000)".into()),
        (40, format!("SELECT rate_limit._job_again(ARRAY[1503], ARRAY[1], 'unstarted', 0, '', {TAKES_LIMITS}, NULL)")),
        (10, "SELECT * FROM rate_limit._jobs_discard('q', ARRAY[41001, 41002])".into()),
        (600, format!("SELECT * FROM rate_limit._claim('q', 'w', 16, 0, 60000000, 60000000, {TAKES_LIMITS})")),
    ];
    // The first session has made its plans before there are many jobs.
    for (_, sql) in statements.iter().cycle().take(6 * statements.len()) {
        sqlx::query(AssertSqlSafe(sql.clone())).fetch_all(&mut sessions[0]).await.expect("an answer");
    }
    let many = format!(
        "{JOBS} FROM unnest(ARRAY['running', 'scheduled', 'dead']) WITH ORDINALITY AS u (s, nth), generate_series(1, 20000) AS g,
         rate_limit._clock() AS c ORDER BY u.nth, g"
    );
    database.execute(&many).await;
    let mut found = Vec::new();
    for (nth, conn) in sessions.iter_mut().enumerate() {
        for (most, sql) in &statements {
            sqlx::query("BEGIN ISOLATION LEVEL READ COMMITTED").execute(&mut *conn).await.expect("begin");
            let before = rows_read(conn).await;
            let answered = sqlx::query(AssertSqlSafe(sql.clone())).fetch_all(&mut *conn).await.expect("an answer");
            let read = rows_read(conn).await - before;
            if read > *most || answered.is_empty() {
                found.push(format!("{sql} read {read} rows in session {nth}, and answered {} rows", answered.len()));
            }
            sqlx::query("ROLLBACK").execute(&mut *conn).await.expect("rollback");
        }
    }
    assert!(found.is_empty(), "{}", found.join("\n"));
}

/// Unless a setting disables it, PostgreSQL may compile a plan, which takes a hundred times as long as running it.
#[tokio::test]
async fn every_function_that_reads_tables_disables_jit() {
    let database = Database::migrated().await;
    // Functions without settings run within functions that have them.
    let sql = "SELECT p.oid::regprocedure::text FROM pg_proc AS p WHERE p.pronamespace = 'rate_limit'::regnamespace \
               AND p.prosecdef AND NOT coalesce('jit=off' = ANY (p.proconfig), false)";
    let without: Vec<String> = sqlx::query_scalar(sql).fetch_all(&database.pool).await.expect("functions");
    assert!(without.is_empty(), "{without:?}");
}

/// A transaction that stays open elsewhere keeps all versions of a hot row.
#[tokio::test]
async fn combined_calls_do_not_read_every_row_version_an_old_snapshot_keeps() {
    const CALL: &str =
        "SELECT rate_limit._decide_one('hot', 'k', 'token_bucket', 1e9, 1000000, 1e9, NULL, NULL, 1, 1, 1, 2, false)";
    let database = Database::migrated().await;
    database.execute(CALL).await;
    let mut old = database.pool.begin_with("BEGIN ISOLATION LEVEL REPEATABLE READ").await.expect("begin");
    sqlx::query("SELECT FROM rate_limit.rate_limits").execute(&mut *old).await.expect("a snapshot");
    // Each in a transaction of its own.
    let calls = format!("DO $$ BEGIN FOR nth IN 1 .. 5000 LOOP PERFORM ({CALL}); COMMIT; END LOOP; END $$");
    database.execute(&calls).await;
    for level in ["REPEATABLE READ", "SERIALIZABLE"] {
        // About one call in fifty writes its version to a new page, and then the index checks all versions.
        let mut least = i64::MAX;
        for _ in 0..5 {
            let mut tx = database.pool.begin_with(begin(level)).await.expect("begin");
            let fetched = "SELECT pg_stat_get_xact_blocks_fetched('rate_limit.rate_limits'::regclass)";
            let before: i64 = sqlx::query_scalar(fetched).fetch_one(&mut *tx).await.expect("a count");
            sqlx::query(CALL).execute(&mut *tx).await.expect("a decision");
            let after: i64 = sqlx::query_scalar(fetched).fetch_one(&mut *tx).await.expect("a count");
            tx.commit().await.expect("commit");
            least = least.min(after - before);
        }
        assert!((1..=10).contains(&least), "{level}: {least} pages read");
    }
    old.rollback().await.expect("rollback");
}

fn begin(level: &str) -> AssertSqlSafe<String> {
    AssertSqlSafe(format!("BEGIN ISOLATION LEVEL {level}"))
}
