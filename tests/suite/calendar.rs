//! Calendar windows: the worked cases, the model with jiff's time zones, and every way that a call can run.

use std::time::{Duration, UNIX_EPOCH};

use futures_util::future::join_all;
use jiff::civil::DateTime;
use jiff::{SignedDuration, Timestamp};
use pg_limiter::queue::{Job, Queue};
use pg_limiter::sqlx::{Connection, PgConnection, Row};
use pg_limiter::{Calendar, Call, CallAt, Error, Item, Kind, Limit, Limits, Op, TransactionLimiter};
use proptest::prelude::*;

use crate::model::{self, Model, Rule};
use crate::properties::{check, compare, expected};
use crate::support::{Database, Step, decide, sqlx};

const ZONES: &[&str] = &[
    "Australia/Lord_Howe", // half an hour forward and back
    "Pacific/Apia",        // skipped 30 December 2011
    "Pacific/Kwajalein",   // skipped 21 August 1993
    "Asia/Kolkata",
    "America/St_Johns",  // at one minute past midnight until 2011
    "America/Sao_Paulo", // at midnight until 2019
    "Africa/Cairo",      // at midnight, and twice a year more for Ramadan in 2010 and 2014
    "Antarctica/Troll",  // two hours forward and back
    "Europe/Berlin",
    "UTC",
];

fn calendar() -> impl Strategy<Value = model::Calendar> {
    let unit = proptest::sample::select(&["hour", "hour", "day", "week", "month", "year"][..]);
    let anchor = (1900..2100_i16, 1..13_i8, 1..32_i8, 0..24_i8, prop_oneof![Just(0), Just(30), 0..60_i8]);
    (unit, prop_oneof![Just(1), 1..30_i64], proptest::sample::select(ZONES), anchor).prop_map(
        |(unit, count, zone, (year, month, day, hour, minute))| {
            let day = DateTime::new(year, month, day, 0, 0, 0, 0).map_or(28, |date| date.day());
            let anchor = DateTime::constant(year, month, day, hour, minute, 0, 0);
            model::Calendar { count, unit, zone, anchor }
        },
    )
}

/// A moment from 1970 to 2020: any one, or one within days of a change of the clocks. Later rules may differ between the time
/// zone data of the server and of the model.
fn moment(calendar: &model::Calendar, (seconds, near, micros): (i64, bool, i64)) -> i64 {
    let any = Timestamp::from_second(seconds).expect("a time");
    let change = calendar.zone().following(any).next().map(|change| change.timestamp());
    let change = change.filter(|change| near && change.as_second() < SECONDS_UNTIL_2020);
    change.unwrap_or(any).as_microsecond() + micros
}

const SECONDS_UNTIL_2020: i64 = 1_577_836_800;
const DAY: i64 = 86_400_000_000;

fn moments(most: usize) -> impl Strategy<Value = Vec<(i64, bool, i64)>> {
    let moment = (2 * 86_400..SECONDS_UNTIL_2020 - 40 * 86_400, any::<bool>(), -DAY..2 * DAY);
    proptest::collection::vec(moment, 1..most)
}

/// Each moment is in exactly one window, and SQL and the model agree which one it is.
#[test]
fn windows_tile_time_in_any_zone_from_any_anchor() {
    check(150, &(calendar(), moments(40)), async |conn: &mut PgConnection, (calendar, moments)| {
        let mut moments: Vec<i64> = moments.into_iter().map(|given| moment(&calendar, given)).collect();
        // Also the ends of windows, to the microsecond.
        let starts: Vec<i64> = moments.iter().map(|at| calendar.granted_at(calendar.window(*at) + 1)).collect();
        moments.extend(starts.iter().flat_map(|start| [start - 1, *start]));
        let sql =
            "SELECT n.nth, rate_limit._calendar_start($1, n.nth), rate_limit._calendar_ahead($1, n.nth, 1, $3)::bigint
            FROM unnest($2::bigint[]) WITH ORDINALITY AS m (at, place)
            CROSS JOIN LATERAL (SELECT rate_limit._calendar_nth($1, m.at) AS nth) AS n ORDER BY m.place";
        let rows = sqlx::query(sql).bind(calendar.in_sql()).bind(&moments).bind(calendar.micros());
        let rows = rows.fetch_all(conn).await.expect("windows");
        for (at, row) in moments.iter().zip(rows) {
            let (nth, start, end): (i64, i64, i64) = (row.get(0), row.get(1), row.get(2));
            let window = calendar.window(*at);
            assert_eq!((nth, start), (window, calendar.start(window)), "{calendar:?} at {at}");
            assert_eq!(end, calendar.granted_at(window + 1), "{calendar:?} at {at}");
            assert!(start <= *at && *at < end, "{calendar:?}: {at} is not from {start} to {end}");
            // No window between them is left out: the windows that end there have all been granted.
            assert_eq!(calendar.window(end - 1), window, "{calendar:?} at {at}");
        }
    });
}

fn rule() -> impl Strategy<Value = Rule> {
    let tokens = || proptest::option::of(0..60_u32);
    (calendar(), 1..40_u32, tokens(), tokens()).prop_map(|(calendar, rate, capacity, max_reserved)| Rule {
        kind: model::Kind::CalendarWindow(calendar),
        rate: f64::from(rate) / 4.0,
        period_us: calendar.micros(),
        capacity: capacity.map(|tokens| f64::from(tokens) / 4.0),
        max_reserved: max_reserved.map(|tokens| f64::from(tokens) / 4.0),
        start_us: 0,
        resolution: 1,
        shards: 1,
    })
}

/// Also across changes of the clocks, a call is decided as by the model, waits until exactly the window that it needs, and no
/// window is granted twice.
#[test]
fn decisions_in_any_zone_match_the_model() {
    let step = (0..1500_i64, any::<bool>(), 0..24_u32, any::<bool>(), any::<bool>());
    let worlds = (rule(), moments(2), proptest::collection::vec(step, 1..60));
    check(150, &worlds, async |conn: &mut PgConnection, (rule, moments, steps)| {
        let model::Kind::CalendarWindow(calendar) = rule.kind else { unreachable!("a calendar") };
        let (mut model, mut now, mut promised) = (Model::new(), moment(&calendar, moments[0]), None);
        let mut played = Vec::new();
        for (pause, obey, quarters, reserve, is_check) in steps {
            now += promised.take().filter(|_| obey).unwrap_or(pause * rule.period_us.min(2 * DAY) / 1000);
            if now > SECONDS_UNTIL_2020 * 1_000_000 {
                break;
            }
            let op = if is_check { "check" } else { "limit" };
            let items = vec![("a", "k", &rule, f64::from(quarters) / 4.0)];
            let step = Step { leaves: Vec::new(), op, reserve, at: Some(now), items };
            if let Some(verdict) = expected(&mut model, &step) {
                promised = verdict.1.map(|wait| wait as i64);
                played.push((step, verdict));
            }
        }
        let steps: Vec<Step<'_>> = played.iter().map(|(step, _)| step.clone()).collect();
        if steps.is_empty() {
            return;
        }
        let answers = decide(conn, &steps).await.expect("decisions");
        let mut allowed = Vec::new();
        for ((step, verdict), answer) in played.into_iter().zip(&answers) {
            compare(&step, answer, verdict);
            if answer.ok && step.op == "limit" && !step.reserve {
                allowed.push((step.at.expect("a time"), step.items[0].3));
            }
        }
        for (first, (from, _)) in allowed.iter().enumerate() {
            let mut sum = 0.0;
            for (to, count) in &allowed[first..] {
                sum += count;
                let granted = (calendar.window(*to) - calendar.window(*from)) as f64 * rule.rate;
                let most = rule.capacity.unwrap_or(rule.rate) + granted;
                assert!(sum <= most + 1e-6, "{sum} from {from} to {to} of {rule:?}, at most {most}");
            }
        }
    });
}

/// Samoa had no 30 December 2011: an hourly limit grants its 24 windows at the moment at which that day was skipped, and a
/// daily limit does not grant it at all.
#[tokio::test]
async fn a_skipped_day_is_granted_at_once() {
    let database = Database::migrated().await;
    let mut conn = PgConnection::connect(&database.url).await.expect("a connection");
    let skipped = "2011-12-30T10:00:00Z".parse::<Timestamp>().expect("a time");
    let before = skipped - SignedDuration::from_mins(1);
    for (every, left) in [(Calendar::hours(1), 25.0), (Calendar::days(1), 2.0)] {
        let limit = Limit::calendar(1, every).zone("Pacific/Apia").capacity(100).build().expect("a limit");
        let limits = Limits::new().define("a", limit).expect("limits");
        let limiter = TransactionLimiter::new(limits);
        let call =
            |at: Timestamp, op, count: f64| CallAt::new(at.into(), op, Item::new("a", every.to_string()).count(count));
        let calls = [call(before, Op::Limit, 100.0), call(before, Op::Check, 0.0), call(skipped, Op::Check, 0.0)];
        let decisions = limiter.decide_at(&mut conn, &calls).await.expect("decisions");
        let balances: Vec<f64> = decisions.iter().map(|one| one.as_ref().expect("possible").remaining()).collect();
        assert_eq!(balances, [0.0, 0.0, left], "{every}");
    }
}

fn monthly() -> Limit {
    // The window lasts for decades, so it does not end during a test.
    Limit::calendar(10, Calendar::years(100)).zone("Europe/Berlin").anchor("1999-12-31").build().expect("a limit")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn concurrent_calls_in_every_way_get_the_capacity_once() {
    let database = Database::migrated().await;
    let limits = Limits::new().define("one", monthly()).and_then(|limits| limits.define("other", monthly())).and_then(
        |limits| {
            let sharded = Limit::calendar(40, Calendar::years(100)).shards(4);
            limits.define("sharded", sharded)
        },
    );
    let limits = limits.expect("limits");
    let limiters = [database.limiter(limits.clone()), database.limiter(limits.clone())];
    let calls = (0..60).flat_map(|nth| {
        limiters.iter().flat_map(move |limiter| {
            let count = if nth % 2 == 0 { 1.0 } else { 0.5 };
            let group = vec![Item::new("one", "group"), Item::new("other", "group")];
            [
                limiter.limit(Call::from(Item::new("one", "k"))),
                limiter.limit(Call::from(Item::new("sharded", "k"))),
                limiter.limit(Call::from(Item::new("one", "many").count(count))),
                limiter.limit(Call::from(group)),
            ]
        })
    });
    for decision in join_all(calls).await {
        let _ = decision.expect("a decision");
    }
    let sql = "SELECT name, key, sum(value)::float8 FROM rate_limit.rate_limits GROUP BY 1, 2 ORDER BY 1, 2";
    let left: Vec<(String, String, f64)> = sqlx::query_as(sql).fetch_all(&database.pool).await.expect("the rows");
    let names: Vec<_> = left.iter().map(|(name, key, _)| format!("{name} {key}")).collect();
    assert_eq!(names, ["one group", "one k", "one many", "other group", "sharded k"]);
    assert!(left.iter().all(|(.., tokens)| tokens.abs() < 1e-6), "{left:?}");
}

#[tokio::test]
async fn an_unknown_zone_is_an_invalid_limit_and_takes_nothing() {
    let database = Database::migrated().await;
    let limits = Limits::new()
        .define("good", monthly())
        .and_then(|limits| limits.define("bad", Limit::calendar(10, Calendar::days(1)).zone("Mars/Phobos")));
    let limiter = database.limiter(limits.expect("limits"));
    let refused = |error: Error| {
        assert!(matches!(error, Error::InvalidLimit(_)), "{error:?}");
        assert!(
            error.to_string().contains("\"Mars/Phobos\"") && error.to_string().contains("pg_timezone_names"),
            "{error}"
        );
    };
    refused(limiter.limit(("bad", "k")).await.expect_err("refused"));
    refused(limiter.limit(vec![Item::new("good", "k"), Item::new("bad", "k")]).await.expect_err("refused"));
    refused(limiter.check(("bad", "k")).await.expect_err("refused"));
    let (good, bad) = tokio::join!(limiter.limit(("good", "l")), limiter.limit(("bad", "l")));
    assert!(!good.expect("a decision").is_denied());
    refused(bad.expect_err("refused"));
    let mut conn = PgConnection::connect(&database.url).await.expect("a connection");
    refused(limiter.within(&mut conn).limit(("bad", "k")).await.expect_err("refused"));
    assert_eq!(database.rows().await, 1);
}

/// A balance is kept when a limit becomes a calendar window, and when it becomes another kind of window.
#[tokio::test]
async fn a_kind_can_change_to_a_calendar_window_and_back() {
    let database = Database::migrated().await;
    let mut conn = PgConnection::connect(&database.url).await.expect("a connection");
    let century = Duration::from_secs(36_525 * 86_400);
    let others = [
        Limit::fixed_window(10, century).start(Duration::from_secs(946_594_800)).build(), // 1999-12-31 in Berlin
        Limit::sliding_window(10, century).build(),
    ];
    for other in others.map(|limit| limit.expect("a limit")) {
        let calendar = monthly();
        let at = UNIX_EPOCH + Duration::from_secs(1_767_225_600);
        let limiter = TransactionLimiter::new(Limits::new());
        for (way, [first, then]) in [[calendar, other], [other, calendar]].into_iter().enumerate() {
            let key = format!("{} {way}", other.kind());
            let call = |limit: &Limit, count: f64| {
                CallAt::new(at, Op::Limit, Item::new(("a", *limit), key.clone()).count(count))
            };
            let calls = [call(&first, 4.0), call(&then, 1.0), call(&first, 2.0)];
            let mut left = Vec::new();
            for call in &calls {
                let decisions = limiter.decide_at(&mut conn, std::slice::from_ref(call)).await.expect("a decision");
                left.extend(decisions.into_iter().map(|one| one.expect("possible").remaining()));
            }
            assert!(
                left.iter().zip([6.0, 5.0, 3.0]).all(|(left, expected)| (left - expected).abs() < 1e-6),
                "{key}: {left:?}"
            );
        }
    }
}

#[tokio::test]
async fn jobs_on_a_calendar_window_wait_for_the_next_window() {
    let database = Database::migrated().await;
    let limits = Limits::new().define("daily", Limit::calendar(2, Calendar::days(1)).zone("Asia/Kolkata"));
    let limiter = database.limiter(limits.expect("limits"));
    let queue = Queue::new(&limiter, "q").expect("a queue");
    for _ in 0..5 {
        let enqueued = queue.enqueue(Job::new(("daily", "g"), &1).expect("a job")).await.expect("an answer");
        assert!(!enqueued.is_denied());
    }
    // Midnight may pass while the jobs are enqueued.
    let sql = "SELECT array_agg(day - first ORDER BY id) FROM (
        SELECT id, day, min(day) OVER () AS first FROM (
          SELECT id, (to_timestamp(run_at / 1e6) AT TIME ZONE 'Asia/Kolkata')::date AS day FROM rate_limit.jobs) AS j) AS j";
    let days: Vec<i32> = sqlx::query_scalar(sql).fetch_one(&database.pool).await.expect("days");
    assert!(days == [0, 0, 1, 1, 2] || days == [0, 1, 1, 2, 2], "{days:?}");
    let sql = "SELECT count(*) FROM rate_limit.jobs
        WHERE run_at > enqueued_at + 1000000 AND (to_timestamp(run_at / 1e6) AT TIME ZONE 'Asia/Kolkata')::time > '00:00:01'";
    let others: i64 = sqlx::query_scalar(sql).fetch_one(&database.pool).await.expect("a count");
    assert_eq!(others, 0, "later jobs run at midnight");
}

#[test]
fn limits_files_and_code_define_the_same_calendar_windows() {
    let text = r#"
        [limits.llm_budget]
        kind = "calendar_window"
        rate = 1000000
        every = "1 month"
        zone = "Europe/Berlin"
        anchor = "2026-01-31 09:00"
        capacity = 2000000
        max_reserved = 5
        shards = 4

        [limits.daily]
        kind = "calendar_window"
        rate = 0.5
        every = "1 day"
    "#;
    let in_code = Limits::new()
        .define(
            "llm_budget",
            Limit::calendar(1_000_000, Calendar::months(1))
                .zone("Europe/Berlin")
                .anchor("2026-01-31 09:00")
                .capacity(2_000_000)
                .max_reserved(5)
                .shards(4),
        )
        .and_then(|limits| limits.define("daily", Limit::calendar(0.5, Calendar::days(1))));
    let in_code = in_code.expect("limits");
    assert_eq!(Limits::from_toml(text).expect("a file"), in_code);
    for (_, limit) in in_code.iter() {
        let json = serde_json::to_string(limit).expect("JSON");
        assert_eq!(serde_json::from_str::<Limit>(&json).expect("a limit"), *limit, "{json}");
    }
    let budget = in_code.get("llm_budget").expect("a limit");
    assert_eq!(
        budget.to_string(),
        "calendar_window, 1000000 per 1 month, zone Europe/Berlin, anchor 2026-01-31 09:00, capacity 2000000, max_reserved 5, \
         shards 4"
    );
    assert_eq!((budget.kind(), budget.every()), (Kind::CalendarWindow, Some(Calendar::months(1))));
    let daily = in_code.get("daily").expect("a limit");
    assert_eq!((daily.zone(), daily.anchor()), (Some("UTC"), Some("1970-01-01")));
}

#[test]
fn invalid_calendars_are_errors_that_name_the_value() {
    let file = |kind: &str, fields: &str| {
        let text = format!("[limits.a]\nkind = \"{kind}\"\nrate = 1\n{fields}");
        let error = Limits::from_toml(&text).expect_err(fields).to_string();
        assert!(error.contains("limit \"a\""), "{error}");
        error
    };
    for (kind, fields, words) in [
        ("calendar_window", "", &["every"][..]),
        ("calendar_window", "period = \"1d\"", &["period does not apply", "every"]),
        ("calendar_window", "every = \"1 day\"\nperiod = \"1d\"", &["period does not apply"]),
        ("calendar_window", "every = \"1 fortnight\"", &["1 fortnight", "1 month"]),
        ("calendar_window", "every = \"0 days\"", &["0 days", "1 to 36525 days"]),
        ("calendar_window", "every = \"1 day\"\nzone = \"UTC+1\"", &["UTC+1", "Europe/Berlin"]),
        ("calendar_window", "every = \"1 day\"\nanchor = \"2026-02-29\"", &["2026-02-29", "2026-01-31"]),
        ("calendar_window", "every = \"1 day\"\nstart = \"1h\"", &["start does not apply"]),
        ("calendar_window", "every = \"1 day\"\nresolution = 2", &["resolution does not apply"]),
        ("fixed_window", "period = \"1d\"\nevery = \"1 day\"", &["every does not apply", "period"]),
        ("fixed_window", "period = \"1d\"\nzone = \"UTC\"", &["zone does not apply"]),
        ("token_bucket", "period = \"1d\"\nanchor = \"2026-01-01\"", &["anchor does not apply"]),
        ("token_bucket", "every = \"1 day\"", &["period"]),
    ] {
        let error = file(kind, fields);
        assert!(words.iter().all(|word| error.contains(word)), "{fields}: {error}");
    }
    for every in [Calendar::hours(0), Calendar::hours(876_601), Calendar::years(101), Calendar::months(u32::MAX)] {
        let error = Limit::calendar(1, every).build().expect_err("refused").to_string();
        assert!(error.contains(&every.to_string()), "{error}");
    }
    let long = "x".repeat(1000);
    let error = Limit::calendar(1, Calendar::days(1)).zone(&long).build().expect_err("refused").to_string();
    assert!(error.contains("xxx") && error.len() < 300, "{error}");
}

/// The present window, of which the web layer reports the length: a day with 23 or 25 hours, a month with 28 to 31 days.
#[tokio::test]
async fn the_present_window_has_its_length_as_it_is_now() {
    let database = Database::migrated().await;
    let window = async |kind: &str, windows: f64, at: &str| {
        let sql = "SELECT (w.length / 1e6)::float8, (w.filled_in / 1e6)::float8, (w.ends_in / 1e6)::float8
            FROM rate_limit.window($1, 3600000000, $2, (extract(epoch FROM $3::timestamptz) * 1000000)::bigint) AS w";
        let query = sqlx::query_as(sql).bind(kind).bind(windows).bind(at);
        let seconds: (f64, f64, f64) = query.fetch_one(&database.pool).await.expect(kind);
        seconds
    };
    let (hour, day) = (3600.0, 86_400.0);
    let berlin = |every: &str| format!("calendar_window {every} Europe/Berlin 2026-01-01T00:00:00");
    for (every, at, length, ends_in) in [
        ("1 day", "2026-03-28 12:00Z", day, 11.0 * hour),
        ("1 day", "2026-03-29 12:00Z", 23.0 * hour, 10.0 * hour),
        ("1 day", "2026-10-25 12:00Z", 25.0 * hour, 11.0 * hour),
        ("1 month", "2026-02-10 23:00Z", 28.0 * day, 18.0 * day),
        ("1 month", "2028-02-10 23:00Z", 29.0 * day, 19.0 * day),
        ("1 month", "2026-03-10 23:00Z", 31.0 * day - hour, 21.0 * day - hour),
        ("1 month", "2026-04-30 21:00Z", 30.0 * day, hour),
        ("1 year", "2028-12-31 22:00Z", 366.0 * day, hour),
        // The clocks show 2:00 twice, and the window begins at the second one.
        ("1 hour", "2026-10-25 00:30Z", 2.0 * hour, hour / 2.0),
    ] {
        assert_eq!(window(&berlin(every), 1.0, at).await, (length, ends_in, ends_in), "{every} at {at}");
    }
    // Three months fill the bucket: February, March and April.
    let three = window(&berlin("1 month"), 3.0, "2026-02-10 23:00Z").await;
    assert_eq!(three, (89.0 * day - hour, 79.0 * day - hour, 18.0 * day));
    for (kind, message) in [
        ("calendar_window 1 month Mars/Phobos 2026-01-01T00:00:00", "\"Mars/Phobos\""),
        ("calendar_window 0 month UTC 2026-01-01T00:00:00", "0 month"),
        ("calendar_window", "such as \"1 month\""),
        ("calendar", "unknown kind \"calendar\""),
    ] {
        let error = sqlx::query("SELECT rate_limit.window($1, 1)").bind(kind).execute(&database.pool).await;
        let error = error.expect_err(kind).to_string();
        assert!(error.contains(message), "{kind}: {error}");
    }
}

/// From psql: a period of one unit in UTC, or the whole calendar in `kind` or in the elements of limit_all_with.
#[tokio::test]
async fn sql_accepts_periods_and_whole_calendars() {
    let database = Database::migrated().await;
    let wait = async |call: &str| {
        let sql = format!("SELECT extract(epoch FROM retry_after)::float8 FROM {call}");
        let wait: Option<f64> =
            sqlx::query_scalar(sqlx::AssertSqlSafe(sql)).fetch_one(&database.pool).await.expect(call);
        wait
    };
    for (key, kind, period, seconds) in [
        ("m", "calendar_window", "1 month", 18.0 * 86_400.0),
        ("w", "calendar_window", "1 week", 5.0 * 86_400.0), // from Wednesday to Monday
        ("d", "calendar_window", "1 day", 86_400.0),
        ("h", "calendar_window", "36 hours", 43_200.0),
        ("y", "calendar_window", "1 year", 352.0 * 86_400.0),
        ("b", "calendar_window 1 month Europe/Berlin 2026-01-31T09:00:00", "1 month", 17.0 * 86_400.0 + 8.0 * 3600.0),
    ] {
        let call = format!("rate_limit.limit_with('a', '{key}', '{kind}', 1, '{period}', at => '2026-01-14 00:00Z')");
        assert_eq!(wait(&call).await, None, "{call}");
        assert_eq!(wait(&call).await, Some(seconds), "{call}");
    }
    let all = |every: &str| {
        format!(
            r#"rate_limit.limit_all_with('[{{"name": "b", "key": "k", "kind": "calendar_window", "rate": 1, "every": "{every}",
                "zone": "Asia/Kolkata", "anchor": "1999-12-31 09:00"}}]')"#
        )
    };
    assert_eq!(wait(&all("100 years")).await, None);
    let later = wait(&all("100 years")).await.expect("denied");
    let end =
        DateTime::constant(2099, 12, 31, 3, 30, 0, 0).to_zoned(jiff::tz::TimeZone::UTC).expect("a time").timestamp();
    let sql = "SELECT extract(epoch FROM clock_timestamp())::float8";
    let now: f64 = sqlx::query_scalar(sql).fetch_one(&database.pool).await.expect("the time");
    assert!((now + later - end.as_second() as f64).abs() < 3600.0, "{later}");
    for (call, words) in [
        ("rate_limit.limit_with('a', 'k', 'calendar_window', 1, '90 minutes')", &["invalid_limit: ", "1 month"][..]),
        ("rate_limit.limit_with('a', 'k', 'calendar_window', 1, '1 month 1 day')", &["invalid_limit: ", "1 month"]),
        ("rate_limit.limit_with('a', 'k', 'calendar_window', 1, '1 month', start => '1 hour')", &["start"]),
        (
            "rate_limit.limit_with('a', 'k', 'calendar_window 1 day Mars/Phobos 2026-01-31T00:00:00', 1, '1 day')",
            &["\"Mars/Phobos\""],
        ),
        (
            "rate_limit.limit_with('a', 'k', 'calendar_window 0 day UTC 2026-01-31T00:00:00', 1, '1 day')",
            &["invalid_limit: ", "0 day"],
        ),
        (
            "rate_limit.limit_with('a', 'k', 'calendar_window 1 day UTC', 1, '1 day')",
            &["invalid_limit: ", "anchor \"\""],
        ),
        (
            "rate_limit.limit_with('a', 'k', 'calendar_window 1 days UTC 2026-01-31T00:00:00', 1, '1 day')",
            &["unknown kind"],
        ),
        (
            "rate_limit.limit_with('a', 'k', 'calendar_window 1 day UTC 2026-01-31T00:00:00 x', 1, '1 day')",
            &["unknown kind"],
        ),
        ("rate_limit.limit_with('a', 'k', 'fixed_window', 1, '1 month')", &["months"]),
        (&all("1 fortnight"), &["element 1", "1 fortnight"]),
        (&all("1 month").replace("Asia/Kolkata", "Berlin2"), &["element 1", "\"Berlin2\""]),
        (&all("1 month").replace("Asia/Kolkata", "Mars/Phobos"), &["time zone \"Mars/Phobos\" not recognized"]),
        (&all("1 month").replace("1999-12-31", "1999-02-29"), &["element 1", "1999-02-29"]),
        (
            &all("1 month").replace("calendar_window", "fixed_window").replace("every", "period"),
            &["zone does not apply", "element 1"],
        ),
        (&all("1 month").replace("every", "period"), &["element 1", "\"every\" is missing"]),
    ] {
        let sql = format!("SELECT * FROM {call}");
        let error = sqlx::query(sqlx::AssertSqlSafe(sql)).execute(&database.pool).await.expect_err(call);
        let error = error.as_database_error().expect("an error of the database");
        assert_eq!(error.code().as_deref(), Some("22023"), "{call}: {error}");
        assert!(words.iter().all(|word| error.message().contains(word)), "{call}: {error}");
    }
}
