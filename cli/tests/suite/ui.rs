//! `pg-limiter ui` over plain HTTP.

use pg_limiter::queue::{Job, JobState, Queue};
use pg_limiter::sqlx;
use pg_limiter::{Item, Limits};

use crate::binary::run;
use crate::support::gate::limiter;
use crate::support::{Database, scheduled};
use crate::ui_server::{LIMITS, Ui, filled};

const PAGES: [&str; 6] = ["/limits", "/limit?name=bucket", "/key?key=u1", "/queue", "/what-if", "/health"];

#[tokio::test]
async fn every_page_shows_what_the_database_has() {
    let (database, _dir, limits) = filled().await;
    let ui = Ui::start(Some(&database), &["--limits", &limits]);
    let page = ui.page_with("/limits", "keys in use").await;
    for text in
        ["bucket", "sharded", "Emptiest keys", "Not in use", "fixed_window, 5 per 1h", "read only", "All 9 rows"]
    {
        assert!(page.contains(text), "no {text:?} in {page}");
    }
    // Keys are texts, not HTML.
    assert!(page.contains("&lt;b&gt;&amp;&quot;u2&quot;") && !page.contains("<b>&"), "{page}");
    let page = ui.get("/key?key=u1").await.1;
    for text in [
        "3</span> of 10 tokens left",
        "2</span> of 3 slots free",
        "Leases held",
        "blocked",
        "Counts of the window",
        "Shards",
    ] {
        assert!(page.contains(text), "no {text:?} in {page}");
    }
    let page = ui.get("/key?key=u").await.1;
    assert!(page.contains("Keys that begin like this") && page.contains("/key?key=u1"), "{page}");
    // An address is stored as a web layer counts it.
    database.execute("UPDATE rate_limit.rate_limits SET key = '2:2001:db8::/64' WHERE name = 'banned'").await;
    let page = ui.get("/key?key=2001:db8::1").await.1;
    assert!(page.contains("stored in another form") && page.contains("/key?key=2%3A2001%3Adb8%3A%3A%2F64"), "{page}");
    assert!(ui.get("/health").await.1.contains("rate_limits"));
    // Names are foreign text, too.
    let odd = "UPDATE rate_limit.rate_limits SET name = E'odd\\u202e\\u200b\\x1b' WHERE name = 'banned'";
    database.execute(odd).await;
    let page = ui.page_with("/limits", "<bdi>odd\\u{202e}\\u{200b}\\u{1b}</bdi>").await;
    assert!(!page.contains(['\u{202e}', '\u{200b}', '\u{1b}']), "{page}");
    let page = ui.get("/what-if").await.1;
    assert!(page.contains("% admitted"), "{page}");
    // A log of 30 requests at the same time, on a limit of 10.
    let log = "192.0.2.1 - - [17/May/2015:10:05:03 +0000] \"GET / HTTP/1.1\" 200 1\n".repeat(30);
    let fields = [
        ("form", &*ui.form().await),
        ("kind", "token_bucket"),
        ("rate", "10"),
        ("period", "1h"),
        ("traffic", "log"),
        ("log_key", "remote_addr"),
        ("log", &log),
        ("beside", "bucket"),
    ];
    let page = ui.what_if(&fields).await;
    assert_eq!(page.matches("30 calls offered, 10 admitted, 20 denied").count(), 6, "{page}");
    assert!(page.contains("bucket (today)"), "{page}");
    // One call, and lines that cannot be read, alone and beside many that can.
    let simulate = async |log: &str| ui.what_if(&[&fields[..6], &[("log", log)]].concat()).await;
    let line = log.lines().next().expect("a line");
    let page = simulate(line).await;
    assert!(page.contains("1 call offered, 1 admitted, 0 denied"), "{page}");
    let page = simulate(&format!("{line}\nno line\n")).await;
    assert!(page.contains("1 of 2 lines cannot be read (50.0 %), and this page allows 1%"), "{page}");
    assert!(!page.contains("\\n") && !page.contains("--max-bad-lines"), "{page}");
    let page = simulate(&format!("{}no line\n", format!("{line}\n").repeat(200))).await;
    assert!(page.contains("1 of 201 lines cannot be read") && page.contains("200 calls offered"), "{page}");
    assert!(!page.contains("\\n"), "{page}");
    assert_eq!((ui.get("/nothing").await.0, ui.get("/job?id=99").await.0), (404, 404));
    for path in [
        "/job",
        "/job?id=x",
        "/limit",
        "/key?key=&key=a",
        "/key?key=%00",
        "/queue?queue=%00",
        "/queue?queue=a&after=%00",
    ] {
        let (code, page) = ui.get(path).await;
        assert!(
            code == 400 && page.contains("This cannot be done") && page.contains("Sections"),
            "{path}: {code} {page}"
        );
    }
    let page = ui.get("/limit").await.1;
    assert!(page.contains("the link is invalid: missing field") && !page.contains("deserialize"), "{page}");
    assert_eq!(ui.post("/what-if", &[], &[]).await.0, 400);
    assert!(ui.page_with("/limits", "Nothing was taken in").await.contains("since pg-limiter began to watch"));
    let (code, _) = ui.interrupt();
    assert_eq!(code, Some(0));
}

#[tokio::test]
async fn every_response_has_the_headers_that_confine_it() {
    let ui = Ui::start(Some(&Database::migrated().await), &[]);
    for path in PAGES.into_iter().chain(["/", "/style.css", "/page.js", "/icon.svg", "/nothing"]) {
        let response = ui.client.get(format!("{}{path}", ui.url)).send().await.expect("a response");
        let header = |name: &str| {
            response.headers().get(name).and_then(|value| value.to_str().ok()).unwrap_or_default().to_owned()
        };
        let policy = header("content-security-policy");
        for part in [
            "default-src 'none'",
            "script-src 'self'",
            "style-src 'self'",
            "frame-ancestors 'none'",
            "base-uri 'none'",
            "form-action 'self'",
        ] {
            assert!(policy.contains(part), "{path}: {policy}");
        }
        let others = ["x-content-type-options", "referrer-policy", "cache-control"].map(header);
        assert_eq!(others, ["nosniff", "no-referrer", "no-store"], "{path}");
        let page = response.text().await.expect("a text");
        assert!(!page.contains("style=\"") && !page.contains("onclick") && !page.contains("<style"), "{path}");
        assert!(!page.contains("https://") || path == "/health", "{path} names another server");
    }
}

#[tokio::test]
async fn without_allow_changes_nothing_can_be_changed() {
    let (database, _dir, limits) = filled().await;
    let ui = Ui::start(Some(&database), &["--limits", &limits]);
    let form = ui.form().await;
    for path in [
        "/key/reset",
        "/key/credit",
        "/key/unblock",
        "/job/requeue",
        "/job/cancel",
        "/group/resume",
        "/group/pause",
        "/group/requeue",
        "/queue/pause",
        "/queue/resume",
        "/queue/drain",
        "/queue/requeue",
    ] {
        let fields = [
            ("form", &*form),
            ("limit", "bucket"),
            ("key", "u1"),
            ("count", "1"),
            ("id", "1"),
            ("queue", "q"),
            ("group", "g"),
        ];
        let (code, text) = ui.post(path, &fields, &[]).await;
        assert_eq!(code, 404, "{path}: {text}");
    }
    assert!(!ui.get("/key?key=u1").await.1.contains("Reset now"));
    let rows = database.rows().await;
    // The sampler's sessions only read: in the whole database, nothing is written.
    ui.page_with("/limits", "keys in use").await;
    for path in PAGES {
        assert_eq!(ui.get(path).await.0, 200, "{path}");
    }
    assert_eq!(database.rows().await, rows);
}

#[tokio::test]
async fn changes_are_made_where_they_are_allowed() {
    let (database, _dir, limits) = filled().await;
    let limiter = limiter(&database.pool, Limits::from_toml(LIMITS).expect("limits"), |_| {});
    let queue = Queue::new(&limiter, "q").expect("a queue");
    let [dead, waiting] = {
        let job = || Job::new(("sharded", "g"), &"hello").expect("a job");
        [
            scheduled(&queue.enqueue(job()).await.expect("an answer")).id,
            scheduled(&queue.enqueue(job()).await.expect("an answer")).id,
        ]
    };
    database
        .execute(&format!(
            "UPDATE rate_limit.jobs SET state = 'dead', finished_at = 1, last_error = 'no u1' WHERE id = {dead}"
        ))
        .await;
    let ui = Ui::start(Some(&database), &["--limits", &limits, "--allow-changes"]);
    let form = ui.form().await;
    let change = async |path: &str, fields: &[(&str, &str)]| {
        let fields: Vec<(&str, &str)> = [("form", &*form)].into_iter().chain(fields.iter().copied()).collect();
        ui.post(path, &fields, &[]).await
    };
    let of = [("limit", "bucket"), ("key", "u1")];
    let credit = change("/key/credit", &[of[0], of[1], ("count", "2")]).await;
    assert_eq!(credit, (303, "/key?key=u1&done=credited".to_owned()));
    assert_eq!(limiter.peek(("bucket", "u1")).await.expect("a balance").remaining().floor(), 5.0);
    assert_eq!(change("/key/credit", &[of[0], of[1], ("count", "-2")]).await.0, 400);
    assert_eq!(change("/key/reset", &of).await.0, 303);
    assert_eq!(limiter.peek(("bucket", "u1")).await.expect("a balance").remaining(), 10.0);
    assert_eq!(change("/key/unblock", &[("limit", "banned"), ("key", "u1")]).await.0, 303);
    assert_eq!(change("/key/unblock", &[("limit", "banned"), ("key", "u1")]).await.0, 400);
    assert_eq!(change("/key/credit", &[of[0], of[1], ("count", "")]).await.0, 422);
    for (count, status) in [("x", 422), ("", 422), ("1,5", 422), ("-2", 400), ("0", 400), ("NaN", 400)] {
        let (code, page) = change("/key/credit", &[of[0], of[1], ("count", count)]).await;
        let text = format!("count is &quot;{count}&quot;: give a number of tokens above 0");
        assert!(code == status && page.contains(&text), "{count}: {code} {page}");
    }
    for path in ["/job/requeue", "/job/cancel"] {
        let (code, page) = change(path, &[("id", "x")]).await;
        assert!(code == 422 && page.contains("id is &quot;x&quot;: give the number of a job"), "{code} {page}");
    }
    for (path, text) in [("/job?id=x", "id is &quot;x&quot;"), ("/queue?queue=q&page=-1", "page is &quot;-1&quot;")] {
        let (code, page) = ui.get(path).await;
        assert!(code == 400 && page.contains(text) && page.contains(": give the number of a "), "{path}: {page}");
    }
    for (path, text) in [
        ("/queue?queue=other", "The queue <bdi>other</bdi> has no jobs."),
        ("/queue?queue=q&state=dead&page=1", "The list ends before this page."),
    ] {
        let (code, page) = ui.get(path).await;
        assert!(code == 200 && page.contains(text), "{path}: {page}");
    }
    assert_eq!(limiter.is_blocked(("banned", "u1")).await.expect("an answer"), None);
    let state = async |id| queue.job(id).await.expect("an answer").expect("a job").state;
    assert_eq!(change("/job/requeue", &[("id", &dead.to_string())]).await.0, 303);
    assert_eq!(state(dead).await, JobState::Scheduled);
    assert_eq!(change("/job/cancel", &[("id", &waiting.to_string())]).await.0, 303);
    assert_eq!(state(waiting).await, JobState::Cancelled);
    assert_eq!(change("/job/cancel", &[("id", &waiting.to_string())]).await.0, 400);

    // A form of another run, or of another site.
    limiter.limit(Item::new("bucket", "u1").count(1)).await.expect("a decision").enforce().expect("a token");
    assert_eq!(ui.post("/key/reset", &[("form", "0"), of[0], of[1]], &[]).await.0, 403);
    for headers in [
        [("sec-fetch-site", "cross-site")],
        [("sec-fetch-site", "same-site")],
        [("origin", "http://evil.example")],
        [("origin", "null")],
    ] {
        assert_eq!(ui.post("/key/reset", &[("form", &form), of[0], of[1]], &headers).await.0, 403, "{headers:?}");
    }
    assert_eq!(limiter.peek(("bucket", "u1")).await.expect("a balance").remaining().floor(), 9.0);
}

#[tokio::test]
async fn other_names_and_other_sites_are_refused() {
    let ui = Ui::start(Some(&Database::migrated().await), &[]);
    let with = async |name: &str, value: &str| {
        ui.client
            .get(format!("{}/limits", ui.url))
            .header(name, value)
            .send()
            .await
            .expect("a response")
            .status()
            .as_u16()
    };
    let port = ui.url.rsplit(':').next().expect("a port");
    assert_eq!(with("host", &format!("localhost:{port}")).await, 200);
    assert_eq!([with("host", "evil.example").await, with("host", &format!("evil.example:{port}")).await], [421, 421]);
    assert_eq!(with("sec-fetch-site", "cross-site").await, 403);
}

#[tokio::test]
async fn a_token_is_needed_where_one_is_set() {
    let token = "0123456789abcdef";
    let ui = Ui::start(Some(&Database::migrated().await), &["--token", token]);
    assert_eq!(ui.token.as_deref(), Some(token));
    for path in PAGES.into_iter().chain(["/style.css", "/limits?token=0123456789abcdee"]) {
        assert_eq!(ui.get(path).await.0, 401, "{path}");
    }
    let response = ui.client.get(format!("{}/limits?name=a&token={token}", ui.url)).send().await.expect("a response");
    assert_eq!(
        (response.status().as_u16(), response.headers()["location"].to_str().expect("a text")),
        (303, "/limits?name=a")
    );
    let cookie = response.headers()["set-cookie"].to_str().expect("a text").to_owned();
    assert!(cookie.contains("; HttpOnly; SameSite=Strict"), "{cookie}");
    let request =
        ui.client.get(format!("{}/limits", ui.url)).header("cookie", cookie.split(';').next().expect("a pair"));
    assert_eq!(request.send().await.expect("a response").status().as_u16(), 200);

    let database = Database::empty().await;
    run(Some(&database.url), &["ui", "--token", "short"], "").refuses(2, &["too short", "16"]);
    run(None, &["ui"], "").refuses(2, &["no database given"]);
}

#[tokio::test]
async fn on_an_address_that_others_reach_a_token_is_made_up() {
    let (database, _dir, limits) = filled().await;
    let mut ui = Ui::start(Some(&database), &["--limits", &limits, "--allow-changes", "--listen", "0.0.0.0:0"]);
    let token = ui.token.clone().expect("a token");
    assert_eq!(token.len(), 64, "{token}");
    ui.url = ui.url.replace("0.0.0.0", "127.0.0.1");
    for path in PAGES.into_iter().chain(["/style.css", "/limits?token="]) {
        let (code, page) = ui.get(path).await;
        assert!(code == 401 && !page.contains("u1"), "{path}: {code} {page}");
    }
    assert_eq!(ui.post("/key/reset", &[("limit", "bucket"), ("key", "u1")], &[]).await.0, 401);
    let response = ui.client.get(format!("{}/limits?token={token}", ui.url)).send().await.expect("a response");
    let cookie =
        response.headers()["set-cookie"].to_str().expect("a text").split(';').next().expect("a pair").to_owned();
    // Visitors use any name of this machine.
    let request =
        ui.client.get(format!("{}/limits", ui.url)).header("cookie", &cookie).header("host", "limits.example");
    assert_eq!(request.send().await.expect("a response").status().as_u16(), 200);
    // The cookie of a visitor does not let other sites change anything.
    let headers = [("cookie", &*cookie), ("origin", "http://evil.example")];
    assert_eq!(ui.post("/key/reset", &[("limit", "bucket"), ("key", "u1")], &headers).await.0, 403);
    assert_eq!(ui.interrupt().0, Some(0));
}

#[tokio::test]
async fn the_demo_has_something_on_every_page() {
    let ui = Ui::start(None, &["--demo"]);
    let page = ui.page_with("/limits", "keys in use").await;
    assert!(page.contains("a private server with made-up traffic"), "{page}");
    for (path, text) in [
        ("/limit?name=api", "Emptiest keys"),
        ("/key?key=alice", "tokens left"),
        ("/queue", "webhooks"),
        ("/what-if", "% admitted"),
        ("/health", "rate_limits"),
    ] {
        ui.page_with(path, text).await;
    }
    assert_eq!(ui.interrupt().0, Some(0));
}

#[tokio::test]
async fn a_lost_database_is_shown_until_it_is_back() {
    let (database, _dir, limits) = filled().await;
    let ui = Ui::start(Some(&database), &["--limits", &limits, "--allow-changes"]);
    ui.page_with("/limits", "keys in use").await;
    let form = ui.form().await;
    let admin = Database::empty().await;
    let name: String = sqlx::query_scalar("SELECT current_database()").fetch_one(&database.pool).await.expect("a name");
    let end = format!("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = '{name}'");
    admin.execute(&format!("ALTER DATABASE \"{name}\" ALLOW_CONNECTIONS false; {end}")).await;
    let page = ui.page_with("/limits", "role=\"alert\"").await;
    assert!(!page.contains("postgres://") && !page.contains("pool timed out"), "{page}");
    assert!(page.contains("accepting connections") && page.contains("what was read at"), "{page}");
    for path in ["/key?key=u1", "/queue"] {
        let (code, page) = ui.get(path).await;
        assert!(code == 503 && page.contains("data-refresh") && page.contains("tried again"), "{path}: {code} {page}");
    }
    // The error of a change stays on the screen: renewing this page would get another one, which has no forms.
    let fields = [("form", &*form), ("limit", "bucket"), ("key", "u1"), ("count", "1")];
    for path in ["/key/reset", "/key/credit"] {
        let (code, page) = ui.post(path, &fields, &[]).await;
        assert!(code == 503 && page.contains("accepting connections"), "{path}: {code} {page}");
        assert!(!page.contains("data-refresh") && !page.contains("tried again"), "{path}: {page}");
    }
    admin.execute(&format!("ALTER DATABASE \"{name}\" ALLOW_CONNECTIONS true")).await;
    ui.page_with("/key?key=u1", "3</span> of 10 tokens left").await;
    for _ in 0..600 {
        if !ui.get("/limits").await.1.contains("role=\"alert\"") {
            assert_eq!(ui.interrupt().0, Some(0));
            return;
        }
        tokio::time::sleep(std::time::Duration::from_millis(50)).await;
    }
    panic!("the page never recovers");
}

#[tokio::test]
async fn hidden_keys_are_nowhere() {
    let (database, _dir, limits) = filled().await;
    let limiter = limiter(&database.pool, Limits::from_toml(LIMITS).expect("limits"), |_| {});
    let secret = "alice@example.com";
    limiter.limit(Item::new("bucket", secret)).await.expect("a decision").enforce().expect("a token");
    let queue = Queue::new(&limiter, "q").expect("a queue");
    let job = Job::new(("sharded", secret), &secret).expect("a job").unique_id(secret);
    let id = scheduled(&queue.enqueue(job).await.expect("an answer")).id;
    database.execute(&format!("UPDATE rate_limit.jobs SET last_error = '{secret}' WHERE id = {id}")).await;
    let ui = Ui::start(Some(&database), &["--limits", &limits, "--hide-keys", "--allow-changes"]);
    let form = ui.form().await;
    ui.page_with("/limits", "keys in use").await;
    let (code, found) = ui.post("/key/find", &[("form", &form), ("key", "alice%40example.com")], &[]).await;
    assert_eq!(code, 303);
    let job = format!("/job?id={id}");
    let pages = [
        &*found,
        &job,
        "/limits",
        "/limit?name=bucket",
        "/queue",
        "/queue?queue=q&state=scheduled",
        "/key?key=alice",
        "/what-if",
    ];
    for path in pages {
        let page = ui.get(path).await.1;
        assert!(!page.contains("alice") || path == "/key?key=alice" && !page.contains("alice"), "{path}: {page}");
    }
    assert!(!found.contains("alice") && ui.get(&found).await.1.contains("of 10 tokens left"), "{found}");
    let (_, messages) = ui.interrupt();
    assert!(!messages.contains("alice"), "{messages}");
}

#[tokio::test]
async fn a_missing_schema_is_shown_until_it_is_there() {
    let database = Database::empty().await;
    let ui = Ui::start(Some(&database), &[]);
    ui.page_with("/limits", "role=\"alert\"").await;
    assert_eq!(ui.get("/key?key=u1").await.0, 503);
    // It recovers.
    run(Some(&database.url), &["migrate"], "");
    ui.page_with("/limits", "No limit is in use").await;
    assert_eq!(ui.interrupt().0, Some(0));
}

#[tokio::test]
async fn a_large_table_is_never_scanned() {
    let database = Database::migrated().await;
    database
        .execute(
            "INSERT INTO rate_limit.rate_limits (name, key, value, ts, idle_at) SELECT 'api', 'k' || n, 5, 0, 9e15 \
             FROM generate_series(1, 1000000) AS n; ANALYZE rate_limit.rate_limits",
        )
        .await;
    let ui = Ui::start(Some(&database), &[]);
    let page = ui.page_with("/limits", "<dd>about ").await;
    assert!(page.contains("A large table"), "{page}");
    for path in ["/key?key=k77777", "/key?key=k7777", "/limit?name=api"] {
        assert_eq!(ui.get(path).await.0, 200);
    }
    assert_eq!(ui.interrupt().0, Some(0));
    let sql = "SELECT coalesce(idx_scan, 0), coalesce(seq_tup_read, 0) FROM pg_stat_user_tables WHERE relname = 'rate_limits'";
    let (mut by_index, mut by_scan) = (0, 0);
    while by_index == 0 {
        tokio::time::sleep(std::time::Duration::from_millis(20)).await;
        (by_index, by_scan) = sqlx::query_as::<_, (i64, i64)>(sql).fetch_one(&database.pool).await.expect("statistics");
    }
    // Each sample reads some 20,000 rows; one scan would read all.
    assert!(by_scan < 1_000_000, "{by_scan} rows read");
}
