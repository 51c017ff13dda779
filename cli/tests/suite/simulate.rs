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

/// A queue without waiting places, against Erlang's formula (A. K. Erlang, 1917): of `offered` slots on average, the share of
/// calls that find all slots taken.
fn erlang_b(slots: u32, offered: f64) -> f64 {
    (1..=slots).fold(1.0, |share, slot| offered * share / (f64::from(slot) + offered * share))
}

#[tokio::test(flavor = "multi_thread")]
async fn random_calls_find_slots_as_often_as_erlang_computed() {
    let database = Database::empty().await;
    let args = "--capacity 5 --lease 1h --hold 2s --calls 2/s --for 4000s --bin 4s";
    for shape in ["--traffic poisson --seed 3", "--traffic poisson --seed 4"] {
        let [slots] = &simulated(&database, &format!("{args} {shape}"))[..] else { panic!("one limit") };
        let number = |field: &str| slots[field].as_f64().expect("a number");
        let (denied, expected) = (number("denied") / number("offered"), erlang_b(5, 4.0));
        assert!((denied - expected).abs() < 0.03, "{denied}, not {expected}");
        let average = number("average_at_once");
        assert!((average - 4.0 * (1.0 - expected)).abs() < 0.15, "{average}");
        assert_eq!((number("most_at_once"), number("lost_leases")), (5.0, 0.0));
        assert!(slots["most_in_a_period"].is_null());
        let free: Vec<f64> = slots["balance"]
            .as_array()
            .expect("points")
            .iter()
            .map(|point| point[1].as_f64().expect("a number"))
            .collect();
        assert!(free.iter().all(|free| (0.0..=5.0).contains(free) && free.fract() == 0.0));
        assert!(free.contains(&0.0) && free.contains(&5.0));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn constant_calls_hold_slots_for_their_time_or_their_lease() {
    let database = Database::empty().await;
    let table = |args: &str| {
        let args = format!("simulate --kind concurrency --capacity 3 --traffic constant --calls 1/s --for 100s {args}");
        let run = run(Some(&database.url), &args.split(' ').collect::<Vec<_>>(), "");
        assert_eq!((run.code, run.stderr.as_str()), (Some(0), ""));
        run.stdout
    };
    // A call a second, each for 5 s: three are admitted, and two denied, in each 5 s. The first lease ends 7 s after the first
    // denial. The last three calls hold their slots for 5 + 4 + 3 s before the end.
    let expected = "\
constant traffic: 1 calls per 1s, for 1m 40s, slots held for 5s: 100 calls

LIMIT                                OFFERED  ADMITTED  DENIED  % ADMITTED  LONGEST WAIT  MOST AT ONCE  AVERAGE AT ONCE  LOST LEASES
concurrency, 3 at a time, lease 10s      100        60      40        60.0            7s             3             2.97            0
";
    assert_eq!(table("--lease 10s --hold 5s"), expected);
    // A lease that ends before the call: its slots are taken again, and the release comes too late.
    let ended = table("--lease 2s --hold 5s");
    assert!(
        ended.contains(
            "lease 2s      100       100       0       100.0            0s             2             1.99           95"
        ),
        "{ended}"
    );
    // Two slots a call, so one call at a time.
    let [slots] =
        &simulated(&database, "--capacity 3 --lease 10s --traffic constant --calls 1/s --for 100s --hold 5s --count 2")
            [..]
    else {
        panic!("one limit")
    };
    assert_eq!(
        (&slots["admitted"], &slots["most_at_once"], &slots["average_at_once"]),
        (&20.into(), &2.into(), &2.into())
    );
    // A denied call is retried when the first lease has ended at the latest, after 10 s; then a slot is free. Its second lease
    // is not released early.
    let args = "--capacity 1 --lease 10s --traffic constant --calls 1/s --for 30s --hold 8s --denied retry";
    let [slots] = &simulated(&database, args)[..] else { panic!("one limit") };
    assert!(slots["admitted"].as_u64() >= Some(3) && slots["most_at_once"] == 1.0, "{slots}");
    assert!(slots["average_at_once"].as_f64() <= Some(1.0) && slots["lost_leases"] == 0, "{slots}");
}

#[tokio::test(flavor = "multi_thread")]
async fn slots_are_simulated_beside_other_kinds_and_gates_are_left_out() {
    let database = Database::empty().await;
    let text = "[limits.banned]\nkind = \"gate\"\n[limits.running]\nkind = \"concurrency\"\ncapacity = 2\n\
                [limits.tokens]\nkind = \"token_bucket\"\nrate = 30\nperiod = \"1m\"\n";
    let (_dir, path) = files(&[("limits.toml", text), ("gate.toml", "[limits.banned]\nkind = \"gate\"\n")]);
    let (limits, gate, picture) = (path("limits.toml"), path("gate.toml"), path("slots.svg"));
    let both = simulated(&database, &format!("--limits {limits} --hold 4s --for 1m --calls 1/s --plot {picture}"));
    let names: Vec<&str> = both.iter().filter_map(|limit| limit["limit"].as_str()).collect();
    assert_eq!(names, ["running", "tokens"]);
    assert!(both[1]["average_at_once"].is_null() && both[0]["average_at_once"].as_f64() > Some(1.0));
    let drawn = std::fs::read_to_string(&picture).expect("a picture");
    for text in
        ["running: concurrency, 2 at a time, lease 30s", "free slots", "balance, free slots", "slots held for 4s"]
    {
        assert!(drawn.contains(text), "no {text:?} in {drawn}");
    }
    let refuses = |args: &str, words: &[&str]| {
        run(None, &format!("simulate {args}").split(' ').collect::<Vec<_>>(), "").refuses(2, words);
    };
    refuses(&format!("--limits {limits}"), &["\"running\" is a concurrency limit: add --hold"]);
    refuses(&format!("--limits {limits} --limit tokens --hold 4s"), &["--hold requires a concurrency limit"]);
    refuses(&format!("--limits {limits} --limit banned"), &["\"banned\" is a gate, which takes no tokens"]);
    refuses(&format!("--limits {gate}"), &["\"banned\" is a gate, which takes no tokens"]);
    let slots = format!("--limits {limits} --limit running --hold");
    refuses(&format!("{slots} 0s"), &["--hold 0s: the length is not between"]);
    refuses(&format!("{slots} soon"), &["--hold", "soon"]);
    refuses(&format!("{slots} 4s --leave 1"), &["headroom", "\"running\""]);
    refuses(&format!("{slots} 4s --reserve"), &["\"running\"", "cannot reserve"]);
    refuses(&format!("{slots} 4s --count 1.5"), &["count 1.5", "\"running\""]);
    refuses(&format!("{slots} 4s --count 3"), &["count 3", "at most 2"]);
    refuses("--capacity 3 --hold 4s", &["no limit given", "--capacity and --lease"]);
    refuses("--capacity 3 --lease 0s --hold 4s", &["0"]);
    refuses("--capacity 1001 --lease 1s --hold 4s", &["1001"]);
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
    // With a database, its stored limits would be meant.
    run(None, &["simulate"], "").refuses(2, &["no limit given", "--limits", "--rate"]);
    refuses("--rate 10", &["--period"]);
    for (options, ignored) in [
        ("--zone Europe/Berlin", "--zone"),
        ("--anchor 2026-01-01", "--anchor"),
        ("--reserve --resolution 5", "--resolution"),
    ] {
        let kinds = &["applies to none of the kinds that are simulated, token_bucket, fixed_window"];
        refuses(&format!("{limit} {options}"), &[ignored, kinds[0]]);
    }
    refuses("--rate 10 --every 1day --resolution 5", &["--resolution applies to none", "calendar_window"]);
    refuses("--rate 10 --period 10s --kind token_bucket --resolution 2", &["resolution", "token_bucket"]);
    refuses(&format!("{limit} --limit a"), &["--limits"]);
    refuses(&format!("{limit} --traffic odd"), &["odd", "constant", "poisson", "bursts"]);
    for calls in "|2|2/|/s|x/s|0/s|-1/s|NaN/s|inf/s|1e999/s|2/0s|2/soon|2/never|2/-1s".split('|') {
        refuses(&format!("{limit} --calls={calls}"), &["--calls", "like 2/s"]);
    }
    for (calls, pace) in [
        ("2/s", "2 calls per 1s"),
        ("2/10s", "2 calls per 10s"),
        ("0.5/m", "0.5 calls per 1m"),
        ("10 / 1m 30s", "10 calls per 1m 30s"),
    ] {
        let args = ["simulate", "--rate", "10", "--period", "10s", "--for", "36525days", "--calls", calls];
        run(None, &args, "").refuses(2, &[&format!("{pace} for 36525d are more than 1,000,000 calls")]);
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
