//! The notices of the page of `pg-limiter ui` are true.

use pg_limiter::Limits;
use pg_limiter::queue::{Job, Queue};
use pg_limiter::sqlx;

use crate::binary::run;
use crate::support::gate::limiter;
use crate::support::{Database, scheduled};
use crate::ui_server::{LIMITS, Ui, filled};

#[tokio::test]
async fn a_link_shows_no_change_that_did_not_happen() {
    let (database, _dir, limits) = filled().await;
    let limiter = limiter(&database.pool, Limits::from_toml(LIMITS).expect("limits"), |_| {});
    let queue = Queue::new(&limiter, "q").expect("a queue");
    let job = Job::new(("sharded", "g"), &"hello").expect("a job");
    let id = scheduled(&queue.enqueue(job).await.expect("an answer")).id.to_string();
    let ui = Ui::start(Some(&database), &["--limits", &limits, "--allow-changes"]);
    let form = ui.form().await;
    let notice = async |path: &str| ui.get(path).await.1.contains("notice good");
    let job_path = |done: &str| format!("/job?id={id}&done={done}");
    for path in ["reset", "credited", "unblocked"].map(|done| format!("/key?key=u1&done={done}")) {
        assert!(!notice(&path).await, "{path}");
    }
    for path in ["requeued", "cancelled"].map(job_path) {
        assert!(!notice(&path).await, "{path}");
    }

    let fields = [("form", &*form), ("limit", "bucket"), ("key", "u1"), ("count", "1")];
    let (_, shown) = ui.post("/key/credit", &fields, &[]).await;
    assert!(ui.get(&shown).await.1.contains("The tokens were given back."), "{shown}");
    assert!(!notice("/key?key=u1&done=reset").await && !notice(&shown.replace("u1", "u2")).await);
    let (_, shown) = ui.post("/job/cancel", &[("form", &*form), ("id", &*id)], &[]).await;
    assert!(ui.get(&shown).await.1.contains("The job is cancelled"), "{shown}");
    assert!(!notice(&job_path("requeued")).await && !notice("/key?key=g&done=cancelled").await);
}

#[tokio::test]
async fn a_group_that_waits_for_its_handler_is_resumed_on_the_page() {
    let (database, _dir, limits) = filled().await;
    let limiter = limiter(&database.pool, Limits::from_toml(LIMITS).expect("limits"), |_| {});
    let queue = Queue::new(&limiter, "q").expect("a queue");
    let job = Job::new(("sharded", "g"), &"hello").expect("a job");
    scheduled(&queue.enqueue(job).await.expect("an answer"));
    // As Finish::Wait does: an hour from now.
    database
        .execute(
            "INSERT INTO rate_limit.groups AS g (queue, key, held_until) VALUES ('q', 'g', rate_limit._clock() + 3600000000)
             ON CONFLICT (queue, key) DO UPDATE SET held_until = excluded.held_until",
        )
        .await;
    let reads = Ui::start(Some(&database), &["--limits", &limits]);
    let page = reads.get("/queue?queue=q").await.1;
    assert!(page.contains("its handler’s wait, until") && !page.contains("/group/resume"), "{page}");

    let ui = Ui::start(Some(&database), &["--limits", &limits, "--allow-changes"]);
    let form = ui.form().await;
    assert!(ui.get("/queue?queue=q").await.1.contains("/group/resume"));
    assert!(!ui.get("/queue?queue=q&done=resumed").await.1.contains("notice good"));
    let fields = [("form", &*form), ("queue", "q"), ("group", "g")];
    assert_eq!(ui.post("/group/resume", &[("form", "0"), fields[1], fields[2]], &[]).await.0, 403);
    let resumed = ui.post("/group/resume", &fields, &[]).await;
    assert_eq!(resumed, (303, "/queue?queue=q&done=resumed".to_owned()));
    let page = ui.get(&resumed.1).await.1;
    assert!(page.contains("The group starts its jobs again") && !page.contains("its handler’s wait, until"), "{page}");
    assert_eq!(ui.post("/group/resume", &fields, &[]).await.0, 400);
    assert_eq!(ui.post("/group/resume", &[fields[0], ("queue", ""), fields[2]], &[]).await.0, 400);
}

#[tokio::test]
async fn queues_and_groups_are_paused_and_resumed_and_dead_jobs_requeued_on_the_page() {
    let (database, _dir, limits) = filled().await;
    let limiter = limiter(&database.pool, Limits::from_toml(LIMITS).expect("limits"), |_| {});
    let queue = Queue::new(&limiter, "other").expect("a queue");
    for _ in 0..2 {
        let job = Job::new(("sharded", "g"), &"hello").expect("a job");
        scheduled(&queue.enqueue(job).await.expect("an answer"));
    }
    let reads = Ui::start(Some(&database), &["--limits", &limits]);
    let page = reads.get("/queue?queue=other").await.1;
    assert!(!page.contains("Pause now") && !page.contains("/group/pause"), "{page}");

    let ui = Ui::start(Some(&database), &["--limits", &limits, "--allow-changes"]);
    let form = ui.form().await;
    let of_queue = [("form", &*form), ("queue", "other")];
    let of_group = [of_queue[0], of_queue[1], ("group", "g")];
    let done = async |path: &str, fields: &[(&str, &str)], text: &str| {
        let (code, shown) = ui.post(path, fields, &[]).await;
        assert_eq!(code, 303, "{path}: {shown}");
        let page = ui.get(&shown).await.1;
        assert!(page.contains(text), "{path}: {page}");
        assert_eq!(ui.post(path, &[("form", "0"), ("queue", "other")], &[]).await.0, 403, "{path}");
        page
    };
    assert!(done("/group/pause", &of_group, "No job starts until it is resumed.").await.contains("its pause’s end"));
    assert_eq!(ui.post("/group/pause", &of_group, &[]).await.0, 400);
    assert!(!done("/group/resume", &of_group, "The group starts its jobs again").await.contains("its pause’s end"));
    assert!(done("/queue/pause", &of_queue, "No job starts").await.contains("This queue is paused since"));
    assert!(done("/queue/drain", &of_queue, "takes no new jobs").await.contains("This queue is draining since"));
    let page = done("/queue/resume", &of_queue, "The queue starts its jobs again").await;
    assert!(!ui.get("/queue?queue=other&done=paused").await.1.contains("notice good"), "it was resumed since");
    assert!(!page.contains("This queue is"), "{page}");
    assert_eq!(ui.post("/queue/resume", &of_queue, &[]).await.0, 400);
    for (path, fields) in [("/group/requeue", &of_group[..]), ("/queue/requeue", &of_queue)] {
        assert_eq!(ui.post(path, fields, &[]).await.0, 400, "no job is dead");
        database.execute("UPDATE rate_limit.jobs SET state = 'dead', finished_at = 1 WHERE queue = 'other'").await;
        assert!(ui.get("/queue?queue=other&state=dead").await.1.contains("Requeue all now"));
        done(path, fields, "Its dead jobs are requeued.").await;
        assert_eq!(queue.group_counts().await.expect("counts")[0].scheduled, 2);
    }
    // A limit that is nowhere defined: without it, they would reserve nothing.
    database
        .execute("UPDATE rate_limit.jobs SET state = 'dead', limit_names = '{gone}' WHERE id = (SELECT max(id) FROM rate_limit.jobs)")
        .await;
    for (path, fields) in [("/group/requeue", &of_group[..]), ("/queue/requeue", &of_queue)] {
        let (code, page) = ui.post(path, fields, &[]).await;
        assert!(code == 400 && page.contains("limit &quot;gone&quot; is not in the limits file"), "{page}");
    }
    // Why the jobs of a group wait.
    for (change, why) in [
        ("blocked_by = 'gone'", "a worker that defines the limit <bdi>gone</bdi>"),
        ("blocked_by = NULL, awaits_turn = true", "a turn of its group"),
    ] {
        database
            .execute(&format!("UPDATE rate_limit.jobs SET state = 'scheduled', {change} WHERE queue = 'other'"))
            .await;
        let id: i64 =
            sqlx::query_scalar("SELECT max(id) FROM rate_limit.jobs").fetch_one(&database.pool).await.expect("an id");
        for path in ["/queue?queue=other".to_owned(), format!("/job?id={id}")] {
            let page = ui.get(&path).await.1;
            assert!(page.contains(why), "{path}: {page}");
        }
    }
    // With many groups of many jobs, the page would count for seconds.
    let many = "INSERT INTO rate_limit.jobs (queue, key, run_at, payload, limit_names, limit_keys, counts, max_attempts, enqueued_at) \
                SELECT 'other', 'many', 9e15, '1', '{}', '{}', '{}', 1, 0 FROM generate_series(1, 1200)";
    database.execute(many).await;
    assert!(ui.get("/queue?queue=other").await.1.contains("1,000+"));
    // An index with jobs of two states is read up to a bound, too.
    let done = "INSERT INTO rate_limit.jobs (queue, key, state, run_at, payload, limit_names, limit_keys, counts, max_attempts, \
                enqueued_at, finished_at) \
                SELECT 'ended', 'k', CASE WHEN n = 1 THEN 'cancelled' ELSE 'done' END, 1, '1', '{}', '{}', '{}', 1, 0, n \
                FROM generate_series(1, 10002) AS n";
    database.execute(done).await;
    let page = ui.get("/queue?queue=ended").await.1;
    assert!(page.contains(">10,000+<") && page.contains(">0+<"), "{page}");
    // A queue without jobs is listed while it is held.
    Queue::new(&limiter, "later").expect("a queue").pause().await.expect("paused");
    assert!(ui.get("/queue?queue=later").await.1.contains("This queue is paused since"));
}

#[tokio::test]
async fn the_demo_with_a_database_is_refused() {
    let database = Database::empty().await;
    let args = ["ui", "--demo", "--listen", "127.0.0.1:0", "--database-url", &database.url];
    run(None, &args, "").refuses(2, &["--demo", "private server", "without --database-url"]);
}

#[tokio::test]
async fn a_filter_by_keys_says_what_the_totals_are_of() {
    let (database, _dir, limits) = filled().await;
    let ui = Ui::start(Some(&database), &["--limits", &limits]);
    let says = "The figures of a limit are of all its keys. The tables list those that begin with";
    ui.page_with("/limits?key=u", says).await;
    assert!(!ui.page_with("/limits", "keys in use").await.contains(says));
    assert!(!ui.page_with("/limits?name=bucket", "keys in use").await.contains(says));
    let page = ui.page_with("/limits", "<dt>keys in use</dt><dd>2</dd>").await;
    assert!(
        page.contains("<dt>key in use</dt><dd>1</dd>") && !page.contains("<dt>keys in use</dt><dd>1</dd>"),
        "{page}"
    );
}

#[tokio::test]
async fn dead_rows_are_counted_once() {
    let database = Database::migrated().await;
    let ui = Ui::start(Some(&database), &[]);
    let page = ui.get("/health").await.1;
    assert!(page.contains("data-label=\"Dead rows\""), "{page}");
    assert!(!page.contains(" live rows, "), "a second count: {page}");
    // The finding stays where it is a warning, with its advice, and `doctor` prints the counts.
    let doctor = run(Some(&database.url), &["doctor"], "");
    assert!(doctor.stdout.contains(" live rows, "), "{}", doctor.stdout);
}

#[tokio::test]
async fn limits_that_are_not_listed_are_not_called_full_or_unused() {
    let database = Database::migrated().await;
    for name in ["zeta", "zulu"] {
        let define =
            format!("SELECT rate_limit.define('{name}', kind => 'token_bucket', rate => 9, period => '36525 days')");
        database.execute(&define).await;
    }
    // A large table is sampled, a small one is read.
    for big in [0, 60_000] {
        let many = "SELECT 'tenant-' || n, 'u1' FROM generate_series(1001, 1600) AS n";
        database
            .execute(&format!(
                "DELETE FROM rate_limit.rate_limits; \
                 INSERT INTO rate_limit.rate_limits (name, key, value, ts, idle_at) SELECT name, key, 0, rate_limit._clock(), 9e15 \
                 FROM ({many} UNION ALL VALUES ('zeta', 'onlyz'), ('zeta', 'u1') \
                   UNION ALL SELECT 'big', 'k' || n FROM generate_series(1, {big}) AS n) AS r (name, key); ANALYZE rate_limit.rate_limits"
            ))
            .await;
        let ui = Ui::start(Some(&database), &[]);
        let page = ui.page_with("/limits", "There are more limits than are listed here").await;
        assert!(page.contains("<bdi>zulu</bdi>") && !page.contains("<bdi>zeta</bdi>"), "{page}");
        assert!(ui.get("/limits?name=zeta").await.1.contains("No listed limit matches"));
        let page = ui.get("/limit?name=zeta").await.1;
        assert!(page.contains("This limit is not listed") && !page.contains("full"), "{page}");
        assert!(ui.get("/limit?name=zulu").await.1.contains("every bucket is full"));
        let page = ui.get("/key?key=onlyz").await.1;
        assert!(page.contains("0</span> of 9 tokens left") && !page.contains("No limit has a row"), "{page}");
        assert_eq!(ui.get("/key?key=u1").await.1.matches("card bucket").count(), 601);
        assert!(ui.get("/key?key=only").await.1.contains("/key?key=onlyz"));

        let top = |args: &[&str]| {
            let args = [&["top", "--once", "--interval", "200ms", "--limit", "z"], args].concat();
            run(Some(&database.url), &args, "").stdout
        };
        let json: serde_json::Value = serde_json::from_str(&top(&["--json"])).expect("JSON");
        assert_eq!((&json["is_cut"], &json["limits"]), (&true.into(), &serde_json::json!([])), "{json}");
        let unused: Vec<_> = json["unused"].as_array().expect("a list").iter().map(|of| &of["name"]).collect();
        assert_eq!(unused, ["zulu"]);
        let text = top(&[]);
        assert!(text.contains("no listed limit matches") && !text.contains("no limits in use"), "{text}");
    }
}

/// The times at which buckets are full are stored, by the rule that was in force at the last write.
#[tokio::test]
async fn after_a_change_of_a_limit_full_is_what_the_new_rule_calls_full() {
    let database = Database::migrated().await;
    let [fast, slow] = ["rate => 1000, period => '1 second'", "rate => 1, period => '36525 days'"];
    for (name, [before, after], capacity) in [("slower", [fast, slow], 20), ("faster", [slow, fast], 10)] {
        let define = |rule, capacity| {
            format!("SELECT rate_limit.define('{name}', kind => 'token_bucket', {rule}, capacity => {capacity})")
        };
        database.execute(&define(before, 10)).await;
        assert_eq!(run(Some(&database.url), &["limit", name, "u7"], "").code, Some(0));
        database.execute(&define(after, capacity)).await;
    }
    tokio::time::sleep(std::time::Duration::from_millis(50)).await;
    let ui = Ui::start(Some(&database), &[]);
    ui.page_with("/limits", "taken in a minute").await;
    let page = ui.get("/key?key=u7").await.1;
    let card = |name: &str| page.split("card bucket").find(|card| card.contains(name)).expect("a card");
    let slower = card("slower");
    assert!(slower.contains("9</span> of 20 tokens left") && !slower.contains("The bucket is full"), "{slower}");
    assert!(slower.contains("if nothing is taken") && slower.contains("the balance from now"), "{slower}");
    let faster = card("faster");
    assert!(faster.contains("10</span> of 10 tokens left") && faster.contains("The bucket is full"), "{faster}");
    let page = ui.get("/limit?name=slower").await.1;
    assert!(page.contains("9 of 20") && !page.contains("All buckets are full") && page.contains(">in 4"), "{page}");
    assert!(ui.get("/limit?name=faster").await.1.contains("All buckets are full"));
    let top = run(Some(&database.url), &["top", "--once", "--interval", "200ms", "--json"], "").stdout;
    let top: serde_json::Value = serde_json::from_str(&top).expect("JSON");
    let emptiest = |name: &str| {
        let limit = top["limits"].as_array().expect("a list").iter().find(|limit| limit["name"] == name);
        limit.expect("a limit")["emptiest"].clone()
    };
    assert_eq!((&emptiest("slower")[0]["key"], emptiest("faster")), (&"u7".into(), serde_json::json!([])), "{top}");
    assert!(emptiest("slower")[0]["full_at"].as_i64() > top["at"].as_i64(), "{top}");
}

#[tokio::test]
async fn keys_are_searched_in_a_database_of_any_encoding() {
    let database = Database::empty().await;
    let name = format!("{}_latin1", database.url.rsplit('/').next().expect("a name"));
    let create = format!("CREATE DATABASE {name} TEMPLATE template0 ENCODING 'LATIN1' LC_COLLATE 'C' LC_CTYPE 'C'");
    database.execute(&create).await;
    let url = format!("{}_latin1", database.url);
    assert_eq!(run(Some(&url), &["migrate"], "").code, Some(0));
    let limit = |key| run(Some(&url), &["limit", "api", key, "--rate", "1", "--period", "1h"], "").code;
    assert_eq!(["jos\u{e9}1", "jos\u{e9}2", "josh"].map(limit), [Some(0); 3]);
    let ui = Ui::start(None, &["--database-url", &url]);
    let (code, page) = ui.get("/key?key=unknown").await;
    assert!(code == 200 && page.contains("No limit has a row for this key"), "{code} {page}");
    let page = ui.get("/key?key=jos%C3%A9").await.1;
    assert!(page.contains("jos\u{e9}1") && page.contains("jos\u{e9}2") && !page.contains("josh"), "{page}");
    let (code, page) = ui.get("/key?key=%E2%86%92").await;
    assert!(code == 400 && page.contains("has no equivalent in encoding"), "{code} {page}");
    assert_eq!(ui.interrupt().0, Some(0));
    database.execute(&format!("DROP DATABASE {name}")).await;
}

#[tokio::test]
async fn queues_that_are_not_listed_are_not_called_empty() {
    let database = Database::migrated().await;
    let fill = "INSERT INTO rate_limit.jobs (queue, key, run_at, payload, limit_names, limit_keys, counts, max_attempts, enqueued_at) \
                SELECT 'q' || n, 'g', 9e15, '1', '{}', '{}', '{}', 1, 0 FROM generate_series(1001, 1201) AS n";
    database.execute(fill).await;
    let ui = Ui::start(Some(&database), &[]);
    let page = ui.get("/queue?queue=q1201").await.1;
    assert!(page.contains("is not listed") && !page.contains("has no jobs"), "{page}");
    assert!(ui.get("/queue?queue=q1001").await.1.contains("The first 200 queues are listed"));
    let top = |args: &[&str]| {
        let args = [&["top", "--once", "--interval", "200ms", "--queue", "q1201"], args].concat();
        run(Some(&database.url), &args, "").stdout
    };
    let text = top(&[]);
    assert!(text.contains("no listed queue matches") && !text.contains("no jobs"), "{text}");
    assert!(top(&["--json"]).contains("\"queues_are_cut\": true"));
}

/// Browsers send line breaks in a field of a form as CR LF, whatever they were.
#[tokio::test]
async fn forms_keep_the_line_breaks_of_keys() {
    let (database, _dir, limits) = filled().await;
    let limiter = limiter(&database.pool, Limits::from_toml(LIMITS).expect("limits"), |_| {});
    let ui = Ui::start(Some(&database), &["--limits", &limits, "--allow-changes"]);
    let form = ui.form().await;
    for key in ["a\nb", "a\r\nb", "\"a\"", "a%20b"] {
        let take = async || assert!(limiter.limit(("bucket", key)).await.expect("a decision").enforce().is_ok());
        take().await;
        let path = format!("/key?key={}", percent_encoded(key));
        let page = ui.get(&path).await.1;
        let fields: Vec<_> = page.split("type=\"hidden\" name=\"key\" value=\"").skip(1).collect();
        let field = fields[0].split('"').next().expect("a value").replace("&quot;", "\"");
        assert_eq!((fields.len(), field.contains('\n')), (2, false), "{page}");
        let sent = percent_encoded(&field);
        let fields = [("form", &*form), ("limit", "bucket"), ("key", &*sent), ("count", "1")];
        let credited = ui.post("/key/credit", &fields, &[]).await;
        assert_eq!(credited, (303, format!("{path}&done=credited")), "{key:?}");
        take().await;
        assert_eq!(ui.post("/key/reset", &fields, &[]).await, (303, format!("{path}&done=reset")), "{key:?}");
        assert!(ui.get(&format!("{path}&done=reset")).await.1.contains("it is full"), "{key:?}");
        let rows = "SELECT count(*) FROM rate_limit.rate_limits WHERE key NOT IN ('u1', '<b>&\"u2\"')";
        let rows: i64 = sqlx::query_scalar(rows).fetch_one(&database.pool).await.expect("a count");
        assert_eq!(rows, 0, "{key:?}");
        let (code, page) = ui.post("/key/reset", &fields, &[]).await;
        assert!(code == 400 && page.contains("no row to remove"), "{key:?}: {code} {page}");
    }
    // A field of one line could not show the key, and the page would not be renewed while the two differ.
    assert!(!ui.get("/key?key=a%0Ab").await.1.contains("value=\"a"));
}

fn percent_encoded(text: &str) -> String {
    let encode = |byte: u8| if byte.is_ascii_alphanumeric() { char::from(byte).into() } else { format!("%{byte:02X}") };
    text.bytes().map(encode).collect()
}
