//! The commands `block` and `unblock`, and gates in the other commands.

use crate::binary::{files, run};
use crate::support::Database;

#[tokio::test(flavor = "multi_thread")]
async fn a_blocked_key_is_denied_until_it_is_unblocked() {
    let database = Database::migrated().await;
    let (_dir, path) = files(&[
        (
            "limits.toml",
            "[limits.banned]\nkind = \"gate\"\n[limits.user]\nkind = \"token_bucket\"\nrate = 10\nperiod = \"1d\"\n",
        ),
        ("secret", "0123456789abcdef0123456789abcdef"),
    ]);
    let (limits, secret) = (path("limits.toml"), path("secret"));
    let tool = |args: &str| run(Some(&database.url), &args.split(' ').collect::<Vec<_>>(), "");
    for with_secret in ["", &format!(" --key-secret-file {secret}")] {
        let limit = |command: &str| tool(&format!("{command} banned u1 --limits {limits}{with_secret}"));
        limit("limit").says(0, "allowed, 0 left");
        limit("peek").says(0, "open");
        tool(&format!("unblock banned u1{with_secret}")).says(0, "nothing to unblock: the key is not blocked");
        tool(&format!("block banned u1 1h{with_secret}")).says(0, "blocked for 1h");
        let shorter = tool(&format!("block banned u1 1s --json{with_secret}"));
        assert!(shorter.code == Some(0) && shorter.stdout.starts_with("{\"blocked_ms\": 35"), "{}", shorter.stdout);
        let denied = limit("limit");
        assert!(denied.code == Some(1) && denied.stdout.starts_with("denied, retry after 59m"), "{}", denied.stdout);
        let peeked = tool(&format!("peek banned u1 --kind gate{with_secret}"));
        assert!(peeked.code == Some(0) && peeked.stdout.starts_with("blocked for 59m"), "{}", peeked.stdout);
        let peeked = tool(&format!("peek banned u1 --kind gate --json{with_secret}"));
        assert!(peeked.stdout.contains("\"blocked_ms\": 35"), "{}", peeked.stdout);
        let unblocked = tool(&format!("unblock banned u1 --json{with_secret}"));
        assert!(unblocked.stdout.starts_with("{\"was_blocked_ms\": 35"), "{}", unblocked.stdout);
        limit("limit").says(0, "allowed, 0 left");
    }
    tool("block banned u1 0s").refuses(2, &["the block of 0ns is not valid"]);
    tool("block banned u1 36526d").refuses(2, &["36525 days"]);
    tool("peek banned u1 --kind gate --rate 1 --period 1s").refuses(2, &["rate does not apply to a gate"]);
    tool(&format!("simulate --limits {limits} --limit banned")).refuses(2, &["\"banned\" is a gate"]);
    tool("simulate --kind gate").refuses(2, &["a gate"]);
    assert_eq!(tool(&format!("simulate --limits {limits} --for 1m")).code, Some(0));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stored_limit_that_is_no_gate_is_neither_blocked_nor_unblocked() {
    let database = Database::migrated().await;
    let tool = |args: &str| run(Some(&database.url), &args.split(' ').collect::<Vec<_>>(), "");
    database.execute("SELECT rate_limit.define('api', 'token_bucket', 2, '1 day')").await;
    database.execute("SELECT rate_limit.define('slots', 'concurrency', capacity => 2)").await;
    database.execute("SELECT rate_limit.define('banned', 'gate')").await;
    tool("limit api u1").says(0, "allowed, 1 left");
    for (name, kind) in [("api", "token_bucket"), ("slots", "concurrency")] {
        for command in ["block NAME u1 1h", "block NAME new 1h --exact", "unblock NAME u1", "unblock NAME new --json"] {
            let refused = format!("the limit \"{name}\" is a {kind}, not a gate, so it cannot be blocked");
            tool(&command.replace("NAME", name)).refuses(2, &[&refused]);
        }
    }
    assert!(tool("peek api u1").stdout.starts_with("1 left"), "the bucket is untouched");
    tool("block banned u1 1h").says(0, "blocked for 1h");
    tool("block undefined u1 1h").says(0, "blocked for 1h");
    assert!(tool("unblock banned u1").stdout.starts_with("unblocked; 59m"));

    // A block outlasts a change of the limit to another kind.
    tool("block banned u2 1h").says(0, "blocked for 1h");
    database.execute("SELECT rate_limit.define('banned', 'token_bucket', 2, '1 day')").await;
    assert!(tool("unblock banned u2").stdout.starts_with("unblocked; 59m"));
    tool("unblock banned u2").refuses(2, &["the limit \"banned\" is a token_bucket, not a gate"]);
    tool("limit banned u2").says(0, "allowed, 1 left");
}
