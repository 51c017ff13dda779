//! Limits that are replaced while calls run, by the application or from a file.

use std::path::{Path, PathBuf};
use std::time::Duration;

use pg_limiter::{Error, InvalidCall, Limit, Limits, LimitsFile, LimitsWatch};

use crate::support::{Database, Events, signal, watch};

const HOUR: Duration = Duration::from_secs(3600);

fn limits(rate: u32) -> Limits {
    Limits::new()
        .define("a", Limit::fixed_window(rate, 24 * HOUR))
        .and_then(|limits| limits.define("slots", Limit::concurrency(rate).lease(HOUR)))
        .expect("limits")
}

#[tokio::test]
async fn calls_use_the_limits_that_replace_others() {
    let database = Database::migrated().await;
    let limiter = database.limiter(limits(2));
    let clone = limiter.clone();
    assert!(limiter.limit(("a", "k", 2)).await.expect("a decision").is_allowed());
    assert!(clone.limit(("a", "k")).await.expect("a decision").is_denied());
    assert_eq!(limiter.replace_limits(limits(5)), limits(2));
    assert_eq!((clone.limits(), limiter.limits()), (limits(5), limits(5)));
    // A new key has the new capacity, in both kinds of transactions.
    assert!(clone.limit(("a", "k2", 5)).await.expect("a decision").is_allowed());
    let mut tx = database.app.begin().await.expect("begin");
    assert!(clone.within(&mut tx).limit(("a", "k3", 5)).await.expect("a decision").is_allowed());
    tx.commit().await.expect("commit");

    limiter.replace_limits(Limits::new());
    let error = clone.limit(("a", "k2")).await.expect_err("undefined");
    assert!(matches!(error, Error::Invalid(InvalidCall::UnknownLimit { .. })), "{error}");
}

/// A lease and a call that waits began with the former limits.
#[tokio::test]
async fn what_has_begun_keeps_its_limits() {
    let database = Database::migrated().await;
    let defined = limits(1).define("soon", Limit::token_bucket(1, Duration::from_secs(1))).expect("a limit");
    let limiter = database.limiter(defined);
    let lease = limiter.acquire(("slots", "k")).await.expect("an answer").enforce().expect("a slot");
    assert!(limiter.limit(("soon", "k")).await.expect("a decision").is_allowed());
    let waiting = limiter.clone();
    let waiter = tokio::spawn(async move { waiting.until_ready(("soon", "k"), Duration::from_secs(60)).await });
    // Until the waiter has reserved.
    let balance = async || limiter.peek(("soon", "k")).await.expect("a balance").remaining();
    while balance().await > -0.1 && !waiter.is_finished() {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    limiter.replace_limits(Limits::new());
    assert!(lease.renew().await.expect("renewed"));
    assert!(lease.release().await.expect("released"), "a lease needs no definition of its limit");
    assert!(waiter.await.expect("a task").expect("a decision").is_allowed());
    limiter.replace_limits(limits(1));
    assert_eq!(limiter.peek(("slots", "k")).await.expect("a balance").remaining(), 1.0);
}

/// A remembered denial by a former limit denies nothing.
#[tokio::test]
async fn denials_by_former_limits_are_not_remembered() {
    let database = Database::migrated().await;
    let mut config = Database::config();
    let mut memory = pg_limiter::DenialMemory::default();
    memory.max_age = HOUR;
    config.remember_denials = Some(memory);
    let sliding = |rate: u32| Limits::new().define("a", Limit::sliding_window(rate, HOUR)).expect("a limit");
    let limiter = pg_limiter::Limiter::with_config(database.app.clone(), sliding(1), config);
    assert!(limiter.limit(("a", "k")).await.expect("a decision").is_allowed());
    assert!(limiter.limit(("a", "k")).await.expect("a decision").is_denied());
    limiter.replace_limits(sliding(2));
    assert!(limiter.limit(("a", "k")).await.expect("a decision").is_allowed());
}

#[cfg(feature = "axum")]
#[tokio::test]
async fn a_layer_follows_replaced_limits() {
    use pg_limiter::web::{ClientAddress, RateLimitLayer};
    let database = Database::migrated().await;
    let limiter = database.limiter(limits(1));
    let layer = RateLimitLayer::new(limiter.clone()).limit("a", ClientAddress::direct()).expect("a limit");
    let app = axum::Router::new().route("/", axum::routing::get(|| async { "hello" })).layer(layer);
    let served = crate::support::web::Served::start(app).await;
    let quota = async || served.get("/", &[]).await.list("ratelimit-policy")[0].1["q"];
    assert_eq!(quota().await, 1);
    limiter.replace_limits(limits(7));
    assert_eq!(quota().await, 7);
    limiter.replace_limits(Limits::new());
    assert_eq!(served.get("/", &[]).await.status, 500, "a limit that the layer needs is not defined");
}

/// A file in a folder of its own.
struct Folder(tempfile::TempDir);

impl Folder {
    fn new() -> Self {
        Self(tempfile::tempdir().expect("a folder"))
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    /// Replaces a file at once.
    fn put(&self, path: &Path, text: &str) {
        let new = self.path("new");
        std::fs::write(&new, text).expect("written");
        std::fs::rename(new, path).expect("renamed");
    }
}

fn toml(name: &str, kind: &str, rate: u32) -> String {
    format!("[limits.{name}]\nkind = \"{kind}\"\nrate = {rate}\nperiod = \"1d\"\n")
}

async fn until(what: &str, is_true: impl Fn() -> bool) {
    for _ in 0..3_000 {
        if is_true() {
            return;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    panic!("never: {what}");
}

fn reason(watch: &LimitsWatch) -> String {
    watch.last_error().map(|error| error.to_string()).unwrap_or_default()
}

#[tokio::test]
async fn a_watched_file_replaces_the_limits_and_a_wrong_one_keeps_them() {
    let (database, folder, events) = (Database::migrated().await, Folder::new(), Events::default());
    let watched = watch(events.clone());
    let path = folder.path("limits.toml");
    folder.put(&path, &toml("a", "fixed_window", 1));
    let file = LimitsFile::new(&path).poll_every(Duration::from_millis(20));
    let in_code = file.read().expect("limits").define("code", Limit::token_bucket(1, HOUR)).expect("a limit");
    let limiter = database.limiter(in_code);
    let watch = limiter.watch_limits_file(file.clone()).expect("watched");
    watch.reload().await.expect("the same limits");
    assert_eq!((watch.changes(), watch.last_error()), (0, None));

    folder.put(&path, &toml("a", "fixed_window", 5));
    until("the new limit", || watch.changes() == 1).await;
    assert!(limiter.limit(("a", "k", 5)).await.expect("a decision").is_allowed());
    assert!(limiter.limits().get("code").is_some(), "limits of the program stay");

    let good = limiter.limits();
    let wrong = [
        ("[limits.a]\nkind = \"fixed_window\"\nrate = -1\nperiod = \"1d\"".to_owned(), "limit \"a\""),
        ("[limits.a".to_owned(), "TOML"),
        (String::new(), "limit \"a\" is missing"),
        (toml("b", "fixed_window", 5), "limit \"a\" is missing"),
        (toml("a", "token_bucket", 5), "a fixed_window cannot become a token_bucket"),
        (toml("a", "fixed_window", 5) + &toml("code", "sliding_window", 1), "limit \"code\""),
        (
            toml("a", "fixed_window", 5)
                + "[limits.month]\nkind = \"calendar_window\"\nrate = 1\nevery = \"1 month\"\nzone = \"Europe/Berln\"\n",
            "limit \"month\": time zone \"Europe/Berln\" not recognized",
        ),
    ];
    for (text, why) in wrong {
        folder.put(&path, &text);
        until(why, || reason(&watch).contains(why)).await;
        assert!(reason(&watch).contains("limits.toml"), "{}", reason(&watch));
        assert_eq!(limiter.limits(), good);
        let error = watch.reload().await.expect_err("still wrong");
        assert_eq!(Some(error), watch.last_error());
    }
    std::fs::remove_file(&path).expect("removed");
    until("no file", || reason(&watch).contains("cannot read it")).await;
    std::fs::create_dir(&path).expect("a folder");
    until("a folder", || reason(&watch).contains("it is not a regular file")).await;
    std::fs::remove_dir(&path).expect("removed");
    until("no file", || !reason(&watch).contains("it is not a regular file")).await;
    assert_eq!((limiter.limits(), watch.changes()), (good, 1));

    // The file is right again, and has one more limit.
    folder.put(&path, &(toml("a", "fixed_window", 6) + &toml("b", "token_bucket", 1)));
    until("the limits", || watch.changes() == 2).await;
    assert_eq!(watch.last_error(), None);
    assert!(limiter.limit(("b", "k")).await.expect("a decision").is_allowed());
    drop(watched);
    let told = events.told();
    assert_eq!(told.matches("keeping the former limits").count(), 10, "once for each content: {told}");

    drop(watch);
    folder.put(&path, &toml("a", "fixed_window", 9));
    tokio::time::sleep(Duration::from_millis(200)).await;
    assert_eq!(limiter.limits().get("a").map(Limit::rate), Some(6.0), "nobody watches");
}

#[tokio::test]
async fn a_file_that_is_written_in_place_is_read_when_it_is_complete() {
    let (database, folder) = (Database::migrated().await, Folder::new());
    let path = folder.path("limits.json");
    let json =
        |rate: &str| format!(r#"{{"limits": {{"a": {{"kind": "fixed_window", "rate": {rate}, "period": "1d"}}}}}}"#);
    std::fs::write(&path, json("1")).expect("written");
    let file = LimitsFile::new(&path).poll_every(Duration::from_millis(10));
    let limiter = database.limiter(file.read().expect("limits"));
    let watch = limiter.watch_limits_file(file).expect("watched");
    watch.reload().await.expect("read");
    let text = json("1234567");
    for length in 1..=text.len() {
        std::fs::write(&path, &text[..length]).expect("written");
        tokio::time::sleep(Duration::from_millis(3)).await;
    }
    until("the limit", || watch.last_error().is_none() && watch.changes() > 0).await;
    assert_eq!(limiter.limits().get("a").map(Limit::rate), Some(1_234_567.0));
}

#[cfg(unix)]
#[tokio::test]
async fn a_signal_reads_the_file() {
    let (database, folder) = (Database::migrated().await, Folder::new());
    let path = folder.path("limits.toml");
    folder.put(&path, &toml("a", "fixed_window", 1));
    let file = LimitsFile::new(&path).poll_every(HOUR).on_sighup();
    let limiter = database.limiter(file.read().expect("limits"));
    let watch = limiter.watch_limits_file(file).expect("watched");
    watch.reload().await.expect("read");
    folder.put(&path, &toml("a", "fixed_window", 2));
    signal(std::process::id(), "HUP");
    until("the limit", || watch.changes() == 1).await;
    assert_eq!(limiter.limits().get("a").map(Limit::rate), Some(2.0));
}

#[test]
fn a_limits_file_that_cannot_be_read_names_the_file() {
    let error = LimitsFile::new("/nowhere/limits.toml").read().expect_err("no file").to_string();
    assert!(error.starts_with("limits file: /nowhere/limits.toml: cannot read it: "), "{error}");
}
