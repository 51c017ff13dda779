//! No error or trace shows a key, whatever the database adds to its own errors.

use std::error::Error as StdError;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, SystemTime};

use futures_util::future::join_all;
use pg_limiter::queue::{Finish, Job, JobState, Queue, handler_fn};
use pg_limiter::sqlx::{self, PgPool};
use pg_limiter::{Call, Error, Item, Key, KeySecret, Limit, Limiter, LimiterConfig, Limits};

use crate::queue::{quick, until_in_state};
use crate::support::gate::{self, CENTURY};
use crate::support::{Database, Events, watch};

const KEY: &str = "anna.secret@example.com";
const PART: &str = "anna";

fn limits() -> Limits {
    Limits::new()
        .define("a", Limit::token_bucket(2, CENTURY))
        .and_then(|limits| limits.define("sliding", Limit::sliding_window(5, CENTURY)))
        .and_then(|limits| limits.define("jobs", Limit::token_bucket(100, CENTURY)))
        .expect("limits")
}

fn limiter(pool: &PgPool) -> Limiter {
    gate::limiter(pool, limits(), |config| config.retry.max_attempts = 3)
}

/// All text that can be printed from an error and its sources.
fn all_of(error: &dyn StdError) -> String {
    let mut text = format!("{error} {error:?} {error:#?}");
    let mut next = error.source();
    while let Some(source) = next {
        text.push_str(&format!(" {source} {source:?}"));
        next = source.source();
    }
    text
}

fn tells_no_key(error: &dyn StdError) {
    let text = all_of(error);
    assert!(!text.contains(PART), "{text}");
}

/// Asserts that PostgreSQL's own error contains the key: otherwise the tests would prove nothing.
async fn the_database_tells(database: &Database, sql: &'static str) {
    let error = sqlx::query(sql).bind(KEY).execute(&database.pool).await.expect_err("refused");
    assert!(all_of(&error).contains(PART), "{error:?}");
}

/// A constraint rejects rows of the key; its DETAIL contains the row.
async fn refuse_rows(database: &Database) {
    database
        .execute("ALTER TABLE rate_limit.rate_limits ADD CONSTRAINT nobody CHECK (key NOT LIKE '%anna%') NOT VALID")
        .await;
}

/// A trigger rejects rows with this SQLSTATE and the key in DETAIL, at once or when the transaction commits.
async fn refuse_with(database: &Database, table: &str, code: &str, at_commit: bool) {
    let (kind, when) = if at_commit {
        ("CONSTRAINT TRIGGER", "AFTER INSERT OR UPDATE ON {} DEFERRABLE INITIALLY DEFERRED")
    } else {
        ("TRIGGER", "BEFORE INSERT OR UPDATE ON {}")
    };
    database
        .execute(&format!(
            "CREATE FUNCTION refuse_{table}() RETURNS trigger LANGUAGE plpgsql AS $$
             BEGIN RAISE EXCEPTION 'no' USING ERRCODE = '{code}', DETAIL = 'Key (key)=(' || NEW.key || ')', HINT = NEW.key; END $$;
             CREATE {kind} refuse {} FOR EACH ROW EXECUTE FUNCTION refuse_{table}()",
            when.replace("{}", &format!("rate_limit.{table}"))
        ))
        .await;
}

#[tokio::test]
async fn invalid_calls_show_no_key() {
    let database = Database::migrated().await;
    let limiter = limiter(&database.pool);
    let other = Limit::token_bucket(7, CENTURY).build().expect("a limit");
    let calls: Vec<Call> = vec![
        ("a", KEY.repeat(50)).into(),
        ("a", format!("{KEY}\0")).into(),
        ("a", KEY, 3).into(),
        ("a", KEY, -1).into(),
        ("a", KEY, f64::NAN).into(),
        ("nope", KEY).into(),
        (String::from("x").repeat(300), KEY).into(),
        Item::new("sliding", KEY).reserve(),
        [Item::new("a", KEY), Item::new(("a", other), KEY)].into(),
    ];
    for call in calls {
        assert!(!format!("{call:?} {call:#?}").contains(PART), "{call:?}");
        let mut tx = database.pool.begin().await.expect("begin");
        let errors = [
            limiter.limit(call.clone()).await.expect_err("invalid"),
            limiter.check(call.clone()).await.expect_err("invalid"),
            limiter.within(&mut tx).limit(call).await.expect_err("invalid"),
        ];
        for error in errors {
            assert!(matches!(error, Error::Invalid(_)), "{error}");
            tells_no_key(&error);
        }
    }
    assert!(!format!("{:?}", Key::from(KEY)).contains(PART));
    assert!(!format!("{limiter:?}").contains(PART));
}

#[tokio::test]
async fn denials_and_database_errors_show_no_key() {
    let events = Events::default();
    let _traced = watch(events.clone());
    let database = Database::migrated().await;
    // The server adds the parameters of a failed statement, which is a common setting.
    database
        .execute(
            "DO $$ BEGIN IF current_setting('server_version_num')::int >= 130000 THEN EXECUTE format(
               'ALTER DATABASE %I SET log_parameter_max_length_on_error = -1', current_database()); END IF; END $$",
        )
        .await;
    let pool = Database::pool(&database.url, 8).await;
    let limiter = limiter(&pool);
    assert!(limiter.limit(("a", KEY, 2)).await.expect("a decision").is_allowed());
    let denied = limiter.limit(("a", KEY)).await.expect("a decision");
    assert!(!format!("{denied:?}").contains(PART));
    let error = denied.enforce().expect_err("denied");
    assert!(matches!(error, Error::Denied(_)));
    tells_no_key(&error);

    refuse_rows(&database).await;
    the_database_tells(
        &database,
        "INSERT INTO rate_limit.rate_limits (name, key, value, ts, idle_at) VALUES ('a', $1 || '2', 1, 0, 0)",
    )
    .await;
    let fresh = || ("a", format!("{KEY} 2"));
    let mut tx = pool.begin().await.expect("begin");
    let mut errors = vec![
        limiter.limit(fresh()).await.expect_err("refused"),
        limiter.charge(fresh()).await.expect_err("refused"),
        limiter.within(&mut tx).limit(fresh()).await.expect_err("refused"),
        limiter.transaction(async |tx| limiter.within(tx).limit(fresh()).await.map(|_| ())).await.expect_err("refused"),
    ];
    tx.rollback().await.expect("rollback");
    errors.extend(join_all((0..9).map(|_| limiter.limit(fresh()))).await.into_iter().filter_map(Result::err));
    assert_eq!(errors.len(), 13);
    for error in &errors {
        assert!(matches!(error, Error::Database { .. }) && error.to_string().contains("23514"), "{error}");
        tells_no_key(error);
    }
    assert!(!events.told().contains(PART), "{}", events.told());
}

#[tokio::test]
async fn conflicts_and_unknown_outcomes_show_no_key() {
    for (code, at_commit) in [("40001", false), ("40P01", true), ("22023", false), ("08007", true), ("57014", false)] {
        let events = Events::default();
        let _traced = watch(events.clone());
        let database = Database::migrated().await;
        refuse_with(&database, "rate_limits", code, at_commit).await;
        let limiter = limiter(&database.pool);
        let error = limiter.limit(("a", KEY)).await.expect_err("refused");
        let expected = match code {
            "40001" | "40P01" => matches!(error, Error::RetriesExhausted { attempts: 3, .. }),
            "08007" => matches!(error, Error::OutcomeUnknown { .. }),
            "57014" => matches!(error, Error::Unavailable { .. }),
            _ => matches!(error, Error::Database { .. }),
        };
        assert!(expected, "{code}: {error}");
        tells_no_key(&error);
        for error in join_all((0..3).map(|_| limiter.limit(("a", KEY)))).await.into_iter().map(Result::unwrap_err) {
            tells_no_key(&error);
        }
        // The limiter does not trace error messages of the application.
        let work = limiter.transaction(async |tx| match limiter.within(tx).limit(("a", KEY)).await {
            Ok(_) => Ok(()),
            Err(source) => Err(Work::Failed { who: KEY, source }),
        });
        let error = match work.await.expect_err("refused") {
            Work::Failed { source, .. } | Work::Limiter(source) => source,
        };
        tells_no_key(&error);
        if code.starts_with("40") {
            assert!(events.told().contains("retrying a transaction"), "{}", events.told());
        }
        assert!(!events.told().contains(PART), "{}", events.told());
    }
}

#[derive(Debug, thiserror::Error)]
enum Work {
    #[error("no message for {who}")]
    Failed { who: &'static str, source: Error },
    #[error(transparent)]
    Limiter(#[from] Error),
}

#[tokio::test]
async fn a_missing_database_schema_or_privilege_shows_no_key() {
    let events = Events::default();
    let _traced = watch(events.clone());
    let empty = Database::empty().await;
    let error = limiter(&empty.pool).limit(("a", KEY)).await.expect_err("no table");
    assert!(matches!(error, Error::SchemaMissing { .. }), "{error}");
    tells_no_key(&error);

    let database = Database::migrated().await;
    let role = format!("private_{}", std::process::id());
    database.execute(&format!("DROP ROLE IF EXISTS {role}; CREATE ROLE {role}")).await;
    let mut conn = database.pool.acquire().await.expect("a connection");
    sqlx::query(sqlx::AssertSqlSafe(format!("SET ROLE {role}"))).execute(&mut *conn).await.expect("set role");
    let error = limiter(&database.pool).within(&mut conn).limit(("a", KEY)).await.expect_err("no privilege");
    assert!(matches!(error, Error::Database { .. }) && error.to_string().contains("42501"), "{error}");
    tells_no_key(&error);
    sqlx::query("RESET ROLE").execute(&mut *conn).await.expect("reset role");
    drop(conn);
    database.execute(&format!("DROP ROLE {role}")).await;

    let mut config = LimiterConfig::default();
    config.retry.deadline = Duration::from_millis(300);
    let hurried = Limiter::with_config(database.pool.clone(), limits(), config.clone());
    assert!(limiter(&database.pool).limit(("a", KEY)).await.expect("a decision").is_allowed());
    let holder = gate::hold(&database, "a", &[KEY]).await;
    let error = hurried.limit(("a", KEY)).await.expect_err("the row is held");
    assert!(matches!(error, Error::Unavailable { .. }), "{error}");
    tells_no_key(&error);
    holder.rollback().await.expect("rollback");
    hurried.close().await;
    let error = hurried.limit(("a", KEY)).await.expect_err("closed");
    assert!(matches!(error, Error::Closed), "{error}");
    tells_no_key(&error);

    let port = std::net::TcpListener::bind("127.0.0.1:0").expect("a port").local_addr().expect("an address").port();
    let pool = PgPool::connect_lazy(&format!("postgres://anna:anna@127.0.0.1:{port}/anna")).expect("a URL");
    let error = Limiter::with_config(pool, limits(), config).limit(("a", KEY)).await.expect_err("no server");
    assert!(matches!(error, Error::Unavailable { .. }), "{error}");
    tells_no_key(&error);
    assert!(!events.told().contains(PART), "{}", events.told());
}

#[tokio::test]
async fn a_queue_and_its_worker_show_no_key() {
    let events = Events::default();
    let _traced = watch(events.clone());
    let database = Database::migrated().await;
    let queue = Queue::new(&limiter(&database.pool), "q").expect("a queue");
    let job = || Job::new(("jobs", KEY), &KEY).expect("a job").max_attempts(3);
    let inline = Limit::token_bucket(7, CENTURY).build().expect("a limit");
    assert!(!format!("{:?} {queue:?}", job().group(KEY).unique_id(KEY)).contains(PART));
    tells_no_key(&Job::new(("jobs", KEY), &format!("{KEY}\0")).expect_err("a NUL"));
    let impossible = [
        Job::new(("jobs", KEY), &KEY.repeat(99_999)).expect("a job"),
        Job::new(("jobs", KEY.repeat(50)), &1).expect("a job"),
        Job::new((("jobs", inline), KEY), &1).expect("a job"),
        Job::new(("nope", KEY), &1).expect("a job"),
        job().group(KEY.repeat(50)),
        job().unique_id(KEY.repeat(50)),
        job().run_at(SystemTime::UNIX_EPOCH),
    ];
    for job in impossible {
        tells_no_key(&queue.enqueue(job).await.expect_err("impossible"));
    }

    let id = queue.enqueue(job()).await.expect("an answer").enforce().expect("a ticket").id;
    let shown = format!("{:?} {:?}", queue.job(id).await.expect("a job"), queue.group_counts().await.expect("counts"));
    assert!(shown.contains("JobInfo") && shown.contains("GroupCounts") && !shown.contains(PART), "{shown}");
    tells_no_key(&queue.settle(id, ("jobs", KEY, 1)).await.expect_err("not started"));
    tells_no_key(&queue.settle(id + 1, ("jobs", KEY, 1)).await.expect_err("unknown"));
    tells_no_key(&queue.cancel(id + 1).await.expect_err("unknown"));

    // The handler returns an error, then panics, then ends with a database error; meanwhile no job can be started for a
    // while.
    let shown = Arc::new(AtomicBool::new(false));
    let showing = Arc::clone(&shown);
    let worker = queue.worker(
        quick(),
        handler_fn(move |job, tx| {
            let showing = Arc::clone(&showing);
            Box::pin(async move {
                showing.store(!format!("{job:?} {job:#?}").contains(PART), Ordering::Relaxed);
                match job.attempt {
                    1 => Err(format!("no mail to {KEY}").into()),
                    2 => panic!("no mail to {KEY}"),
                    _ => {
                        sqlx::query("INSERT INTO refused VALUES ($1)").bind(KEY).execute(&mut *tx).await?;
                        Ok(Finish::Done)
                    }
                }
            })
        }),
    );
    database.execute("CREATE TABLE refused (who text CHECK (who NOT LIKE '%anna%'))").await;
    refuse_with(&database, "jobs", "57014", false).await;
    let enqueued = queue.enqueue(job()).await.expect_err("refused");
    assert!(matches!(enqueued, Error::Unavailable { .. }), "{enqueued}");
    tells_no_key(&enqueued);
    let stop = async {
        while !events.told().contains("cannot look for jobs") {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        database.execute("DROP TRIGGER refuse ON rate_limit.jobs").await;
        until_in_state(&queue, JobState::Dead, 1).await;
    };
    tokio::time::timeout(Duration::from_secs(120), worker.expect("a worker").run(stop))
        .await
        .expect("in time")
        .expect("a report");
    assert!(shown.load(Ordering::Relaxed));
    tells_no_key(&queue.settle(id, ("sliding", KEY, 1)).await.expect_err("not reserved"));
    let told = events.told();
    assert!(told.contains("a job was not done") && !told.contains(PART), "{told}");
}

/// Otherwise the other tests would prove nothing: an event could be skipped because another test reached it first.
#[test]
fn an_event_that_another_thread_reaches_first_is_still_traced() {
    let say = || tracing::info!(target: "pg_limiter::privacy", "said aloud");
    let events = Events::default();
    let _traced = watch(events.clone());
    std::thread::spawn(say).join().expect("no subscriber there");
    assert_eq!(events.told(), "");
    say();
    assert!(events.told().contains("said aloud"));
}

#[test]
fn secrets_are_not_shown() {
    let secret = KeySecret::new(KEY).expect("a secret");
    let mut config = LimiterConfig::default();
    config.key_secret = Some(secret);
    let shown = format!("{config:?}");
    assert!(shown.contains("KeySecret(..)") && !shown.contains(PART), "{shown}");
    tells_no_key(&KeySecret::new(PART).expect_err("too short"));
}
