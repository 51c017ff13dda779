//! `pg-limiter simulate`: synthetic traffic, decided by the database, compared with independent calculations.

use serde_json::Value;

use crate::binary::{files, run};
use crate::support::Database;

/// One object for each limit.
fn simulated(database: &Database, args: &str) -> Vec<Value> {
    let mut all = vec!["simulate", "--json"];
    all.extend(args.split(' '));
    let simulated = run(Some(&database.url), &all, "");
    assert_eq!((simulated.code, simulated.stderr.as_str()), (Some(0), ""), "{args}: {}", simulated.stdout);
    simulated.stdout.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect()
}

fn numbers(values: &Value) -> Vec<f64> {
    values.as_array().expect("an array").iter().map(|value| value.as_f64().expect("a number")).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn constant_traffic_gets_the_capacity_and_then_the_rate() {
    let database = Database::empty().await;
    // Two calls and one token a second: the bucket loses half a token with each call, until call 19 (at 9.5 s) leaves it with
    // 0.5. From then on, every other call finds a token.
    let [bucket] = &simulated(
        &database,
        "--kind token_bucket --rate 10 --period 10s --traffic constant --calls 2/s --for 100s --bin 1s",
    )[..] else {
        panic!("one limit")
    };
    let (mut balance, mut admitted) = (10.0_f64, vec![0.0; 100]);
    for call in 0..200 {
        balance = if call == 0 { balance } else { (balance + 0.5).min(10.0) };
        if balance >= 1.0 {
            balance -= 1.0;
            admitted[call / 2] += 1.0;
        }
    }
    let total = admitted.iter().sum::<f64>();
    assert_eq!(total, 109.0, "10 at once, and 99 that flow in until the last call at 99.5 s");
    assert_eq!(numbers(&bucket["bars_admitted"]), admitted);
    assert_eq!(numbers(&bucket["bars_offered"]), [2.0; 100]);
    assert_eq!((&bucket["offered"], &bucket["admitted"], &bucket["denied"]), (&200.into(), &109.into(), &91.into()));
    assert_eq!((&bucket["longest_wait_ms"], &bucket["bar_ms"]), (&500.into(), &1000.into()));
    // 19 from 0 s to 9.5 s; later 10 in any 10 s.
    assert_eq!(bucket["most_in_a_period"], 19);
}

#[tokio::test(flavor = "multi_thread")]
async fn all_kinds_are_simulated_with_the_same_calls() {
    let database = Database::empty().await;
    let args = "--rate 10 --period 10s --start 0s --traffic constant --calls 2/s --for 40s --bin 10s";
    let kinds = simulated(&database, args);
    let names: Vec<&str> = kinds.iter().filter_map(|kind| kind["kind"].as_str()).collect();
    assert_eq!(names, ["token_bucket", "fixed_window", "sliding_window"]);
    for kind in &kinds {
        assert_eq!(numbers(&kind["bars_offered"]), [20.0; 4]);
        let parts = ["bars_admitted", "bars_reserved", "bars_denied"].map(|part| numbers(&kind[part]));
        for bar in 0..4 {
            assert_eq!(parts.iter().map(|part| part[bar]).sum::<f64>(), 20.0, "{kind}");
        }
    }
    // A window grants ten at its start, which are used up after five seconds.
    assert_eq!(numbers(&kinds[1]["bars_admitted"]), [10.0; 4]);
    assert_eq!(kinds[1]["longest_wait_ms"], 5000);
    // During the second window, the ten of the first leave evenly, one a second.
    assert_eq!(numbers(&kinds[2]["bars_admitted"])[..2], [10.0, 9.0]);
    assert!(kinds[2]["most_in_a_period"].as_f64() < Some(20.0));
}

#[tokio::test(flavor = "multi_thread")]
async fn random_traffic_repeats_for_a_seed_and_has_the_right_mean() {
    let database = Database::empty().await;
    let calls = |seed: u32| {
        let args =
            format!("--kind token_bucket --rate 1 --period 1s --traffic poisson --calls 5/s --for 400s --seed {seed}");
        simulated(&database, &args).remove(0)
    };
    let (one, again, other) = (calls(7), calls(7), calls(8));
    assert_eq!(one, again);
    assert_ne!(one["bars_offered"], other["bars_offered"]);
    for simulated in [&one, &other] {
        // 2,000 are expected, within four standard deviations.
        let offered = simulated["offered"].as_f64().expect("a number");
        assert!((offered - 2000.0).abs() < 4.0 * 2000_f64.sqrt(), "{offered}");
        // A bucket of one token is full a second after an admitted call, and the next call comes 0.2 s later on average. So
        // about 400 / 1.2 are expected, within some standard deviations.
        let admitted = simulated["admitted"].as_u64().expect("a number");
        assert!((315..=351).contains(&admitted), "{admitted}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn calls_retried_after_their_wait_are_all_served() {
    let database = Database::empty().await;
    // Twenty calls (nearly) at once, and one token a second: the last call waits 19 s.
    let args = "--kind token_bucket --rate 1 --period 1s --traffic constant --calls 1000/s --for 20ms";
    let [dropped] = &simulated(&database, args)[..] else { panic!("one limit") };
    assert_eq!((&dropped["offered"], &dropped["admitted"]), (&20.into(), &1.into()));
    let (_dir, path) = files(&[("limits.toml", "[limits.a]\nkind = \"token_bucket\"\nrate = 1\nperiod = \"1s\"\n")]);
    let limits = path("limits.toml");
    let args = format!("--limits {limits} --traffic constant --calls 1/s --for 20s --denied retry --count 0.5");
    let [kept] = &simulated(&database, &args)[..] else { panic!("one limit") };
    assert_eq!((&kept["offered"], &kept["denied"]), (&20.into(), &0.into()));
    // Two calls a second for 10 s, each for a whole token: those of the first half are retried repeatedly.
    let args = format!("--limits {limits} --traffic constant --calls 2/s --for 10s --denied retry");
    let [back] = &simulated(&database, &args)[..] else { panic!("one limit") };
    let number = |field: &str| back[field].as_u64().expect("a number");
    assert_eq!((number("calls"), number("admitted")), (20, 10));
    assert_eq!(number("offered"), number("admitted") + number("denied"));
    assert!(number("denied") > 10, "{back}");
}

#[tokio::test(flavor = "multi_thread")]
async fn simulated_reservations_go_into_debt_and_wait() {
    let database = Database::empty().await;
    let args = "--rate 10 --period 10s --capacity 1 --reserve --traffic constant --calls 2/s --for 10s --start 0s";
    let kinds = simulated(&database, args);
    // Sliding windows cannot reserve.
    assert_eq!(kinds.len(), 2);
    let bucket = &kinds[0];
    assert_eq!((&bucket["admitted"], &bucket["denied"], &bucket["reserved"]), (&20.into(), &0.into(), &19.into()));
    // The last of 20 calls is made at 9.5 s and may proceed at 19 s.
    assert_eq!(bucket["longest_wait_ms"], 9500);
    let least = bucket["balance"].as_array().expect("points").iter().filter_map(|point| point[1].as_f64());
    assert_eq!(least.fold(0.0, f64::min), -9.5);
    // Paced: ten in any ten seconds.
    assert_eq!(bucket["most_in_a_period"], 10);
}

#[tokio::test(flavor = "multi_thread")]
async fn simulate_prints_a_table_and_leaves_the_database_unchanged() {
    let database = Database::migrated().await;
    let limit = ["limit", "token_bucket", "u1", "--rate", "10", "--period", "10s", "--count", "10"];
    run(Some(&database.url), &limit, "").says(0, "allowed, 0 left");
    let args = "simulate --rate 10 --period 10s --start 0s --traffic constant --calls 2/s --for 40s --key u1";
    let expected = "\
constant traffic: 2 calls per 1s, for 40s: 80 calls

LIMIT                                 OFFERED  ADMITTED  DENIED  % ADMITTED  LONGEST WAIT  MOST IN A PERIOD
token_bucket, 10 per 10s                   80        49      31        61.2          0.5s                19
fixed_window, 10 per 10s, start 0s         80        40      40        50.0            5s                10
sliding_window, 10 per 10s, start 0s       80        37      43        46.2            6s                10";
    run(Some(&database.url), &args.split(' ').collect::<Vec<_>>(), "").says(0, expected);
    assert_eq!(database.rows().await, 1);
    // It also works without a database.
    let private = run(None, &args.split(' ').collect::<Vec<_>>(), "");
    private.says(0, expected);
    assert!(private.stderr.contains("private PostgreSQL"), "{}", private.stderr);
}

#[tokio::test(flavor = "multi_thread")]
async fn limits_in_a_file_are_selected_by_name() {
    let database = Database::empty().await;
    let text = r#"
        [limits.a]
        kind = "token_bucket"
        rate = 1
        period = "1s"
        [limits.b]
        kind = "fixed_window"
        rate = 1
        period = "1s"
        [limits.c]
        kind = "sliding_window"
        rate = 100
        period = "1s"
        shards = 4
    "#;
    let (_dir, path) = files(&[("limits.toml", text), ("none.toml", "")]);
    let (limits, none) = (path("limits.toml"), path("none.toml"));
    let names = |args: &str| -> Vec<String> {
        let all = simulated(&database, &format!("--limits {limits} --for 1s {args}"));
        all.iter().map(|one| one["limit"].as_str().expect("a name").to_owned()).collect()
    };
    assert_eq!(names("--seed 1"), ["a", "b", "c"]);
    assert_eq!(names("--limit c --limit a"), ["c", "a"]);
    // With shards, random choices are also the same every time.
    let sharded = format!("--limits {limits} --limit c --calls 300/s --for 2s");
    assert_eq!(simulated(&database, &sharded), simulated(&database, &sharded));
    let refuses = |args: &str, words: &[&str]| run(None, &args.split(' ').collect::<Vec<_>>(), "").refuses(2, words);
    refuses(&format!("simulate --limits {limits} --limit d"), &["limits.toml", "\"d\": define it there"]);
    refuses(&format!("simulate --limits {limits} --limit a --limit a"), &["--limit a", "twice: give it once"]);
    refuses(&format!("simulate --limits {none}"), &["none.toml", "no limits: define one"]);
    refuses(&format!("simulate --limits {limits} --limit c --reserve"), &["\"c\"", "cannot reserve"]);
}

#[test]
fn invalid_simulations_are_rejected_without_a_database() {
    let refuses = |args: &str, words: &[&str]| {
        let mut all = vec!["simulate"];
        all.extend(args.split(' ').filter(|arg| !arg.is_empty()));
        let simulate = run(Some("postgres://nobody@127.0.0.1:1/none"), &all, "");
        assert_eq!((simulate.code, simulate.stdout.as_str()), (Some(2), ""), "{args}: {}", simulate.stderr);
        for word in words {
            assert!(simulate.stderr.contains(word), "{args}: no {word:?} in {}", simulate.stderr);
        }
    };
    let limit = "--rate 10 --period 10s";
    refuses("", &["no limit given", "--limits", "--rate"]);
    refuses("--rate 10", &["--period"]);
    refuses("--rate 10 --period 10s --kind token_bucket --resolution 2", &["resolution", "token_bucket"]);
    refuses(&format!("{limit} --limit a"), &["--limits"]);
    refuses(&format!("{limit} --traffic odd"), &["odd", "constant", "poisson", "bursts"]);
    for calls in ["2", "x/s", "0/s", "-1/s", "1e999/s", "2/never"] {
        refuses(&format!("{limit} --calls={calls}"), &["--calls", "like 2/s"]);
    }
    refuses(&format!("{limit} --calls 100000/s --for 1h"), &["1,000,000 calls", "--calls", "--for"]);
    for (option, bad) in
        [("--for", "0s"), ("--for", "soon"), ("--for", "40000days"), ("--burst", "0.5"), ("--burst", "NaN")]
    {
        refuses(&format!("{limit} --traffic bursts {option} {bad}"), &[option]);
    }
    refuses(&format!("{limit} --pause 1s"), &["--pause", "--traffic bursts"]);
    refuses(&format!("{limit} --seed=-1"), &["--seed"]);
    refuses(&format!("{limit} --denied sulk"), &["drop", "retry"]);
    refuses(&format!("{limit} --count 11"), &["count 11", "at most 10"]);
    refuses(&format!("{limit} --count -1"), &["count -1"]);
    refuses(&format!("{limit} --for 1h --bin 1ms"), &["3,600,000 bars", "--bin"]);
    refuses(&format!("{limit} --bin 0s"), &["--bin"]);
    for name in ["x.pdf", "x", "svg", "-"] {
        refuses(&format!("{limit} --plot {name}"), &["--plot", ".svg", ".png"]);
    }
    refuses(&format!("{limit} --plot no/such/x.svg"), &["no folder no/such"]);
}
