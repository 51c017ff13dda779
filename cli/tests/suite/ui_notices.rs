//! The notices of the page of `pg-limiter ui` are true.

use pg_limiter::Limits;
use pg_limiter::queue::{Job, Queue};

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
