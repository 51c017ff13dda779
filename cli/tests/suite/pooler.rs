//! The commands through pgbouncer.

use std::time::Duration;

use pg_limiter::queue::{Job, Queue};
use pg_limiter::sqlx::{self, Connection, PgConnection};
use pg_limiter::{Limit, Limits};

use crate::binary::{files, run};
use crate::support::gate::limiter;
use crate::support::pooler::{Pooler, Settings};
use crate::support::{Database, scheduled};

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs pgbouncer: run tests/pooler"]
async fn every_command_works_behind_a_pooler_in_transaction_mode() {
    let database = Database::migrated().await;
    let limits = Limits::new().define("a", Limit::token_bucket(1000, Duration::from_secs(1))).expect("a limit");
    let queue = Queue::new(&limiter(&database.pool, limits, |_| {}), "q").expect("a queue");
    let id = scheduled(&queue.enqueue(Job::new(("a", "k"), &1).expect("a job")).await.expect("an answer")).id;
    // Each transaction gets the other one of two sessions. Statements that earlier commands named are still in them.
    let pooler = Pooler::start_in("transaction\nserver_round_robin = 1", &database.url, 2, Settings::Refused);
    let url = pooler.url(&database.url);
    let of_file = "[limits.a]\nkind = \"token_bucket\"\nrate = 9\nperiod = \"1s\"\n[limits.g]\nkind = \"gate\"\n";
    let (_dir, path) = files(&[("limits.toml", of_file)]);
    let commands = format!(
        "limits diff {file}|limits apply {file}|limits show|limits show --history a|limits show --history none\
         |limit a k|check a k|peek a k|reset a k|block g k 1h|unblock g k|forget 2001:db8::1|prune --dead-older-than 1h\
         |queue ls|queue ls --jobs|queue show {id}|queue pause q|queue resume q|queue drain q|queue cancel {id}\
         |queue requeue {id}|queue discard --queue q|export|top --once --interval 200ms|doctor|migrate --check|migrate\
         |exec slots k --slots 1 -- true|exec once k --once-every 1h -- true",
        file = path("limits.toml")
    );
    let mut failed = Vec::new();
    for command in commands.split('|') {
        for _ in 0..2 {
            pooler_opens_both(&url).await;
            let run = run(Some(&url), &command.split(' ').collect::<Vec<_>>(), "");
            let text = [run.stdout, run.stderr].concat();
            println!("{command}: {:?} {text}", run.code);
            assert!(command != "doctor" || text.contains("a pooler in transaction mode"), "{text}");
            if ["42P05", "26000", "34000"].iter().any(|code| text.contains(code)) {
                failed.push(format!("{command}: {text}"));
            }
        }
    }
    assert!(failed.is_empty(), "{failed:#?}");
}

/// Makes the pooler open its two sessions, which it closes when they are not used.
async fn pooler_opens_both(url: &str) {
    let mut sessions = Vec::new();
    for sql in ["BEGIN", "ROLLBACK"] {
        for nth in 0..2 {
            if sql == "BEGIN" {
                sessions.push(PgConnection::connect(url).await.expect("connect"));
            }
            sqlx::raw_sql(sql).execute(&mut sessions[nth]).await.expect("a session");
        }
    }
}
