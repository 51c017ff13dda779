//! The command `forget`.

use pg_limiter::{Item, KeySecret, Limit, Limits};

use crate::binary::{files, run};
use crate::support::Database;
use crate::support::gate::{self, CENTURY};

const SECRET: &str = "0123456789abcdef0123456789abcdef";

#[tokio::test(flavor = "multi_thread")]
async fn a_key_is_forgotten_with_and_without_a_secret() {
    let database = Database::migrated().await;
    let (_dir, path) = files(&[
        ("secret", SECRET),
        ("limits.toml", "[limits.mails]\nkind = \"token_bucket\"\nrate = 10\nperiod = \"1d\"\n"),
    ]);
    let tool = |args: &[&str]| run(Some(&database.url), args, "");
    for (secret, args) in [(None, vec![]), (Some(SECRET), vec!["--key-secret-file", &*path("secret")])] {
        let limits = Limits::new().define("mails", Limit::token_bucket(10, CENTURY)).expect("a limit");
        let limits = limits.define("calls", Limit::token_bucket(10, CENTURY)).expect("a limit");
        let limiter = gate::limiter(&database.pool, limits, |config| {
            config.key_secret = secret.map(|secret| KeySecret::new(secret).expect("a secret"));
        });
        let use_both = async || {
            let items = ["mails", "calls"].map(|name| Item::new(name, "u1"));
            assert!(limiter.limit(items).await.expect("a decision").is_allowed());
        };
        use_both().await;
        tool(&[&["forget", "u1"], &args[..]].concat()).says(0, "deleted 2 rows of buckets, 0 jobs and 0 answers");
        use_both().await;
        let limits = path("limits.toml");
        let json = tool(&[&["forget", "u1", "--json", "--limits", &limits], &args[..]].concat());
        json.says(0, r#"{"buckets": 2, "jobs": 0, "running": 0, "answers": 0}"#);
        assert_eq!(database.rows().await, 0);
    }
    tool(&["forget", ""]).refuses(2, &["the key to forget is empty"]);
}
