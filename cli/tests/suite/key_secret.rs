//! The tool hashes keys under the secret of a file, as the library does.

use std::process::Command;

use pg_limiter::{KeySecret, Limit, Limiter, Limits};

use crate::binary::{files, run, tool as tool_path};
use crate::support::Database;
use crate::support::gate::{self, CENTURY};

const SECRET: &str = "0123456789abcdef0123456789abcdef";
const ANNA: &str = "anna@example.com";

fn limiter(database: &Database) -> Limiter {
    let limits = Limits::new().define("mails", Limit::token_bucket(10, CENTURY)).expect("a limit");
    gate::limiter(&database.pool, limits, |config| config.key_secret = Some(KeySecret::new(SECRET).expect("a secret")))
}

#[tokio::test]
async fn the_tool_hashes_under_the_secret_in_a_file() {
    let database = Database::migrated().await;
    let limiter = limiter(&database);
    let (_dir, path) = files(&[("secret", &format!("{SECRET}\r\n")), ("short", "too short\n")]);
    let secret = path("secret");
    let args = |command| {
        [command, "mails", ANNA, "--rate", "10", "--period", "36525d", "--json", "--key-secret-file", &secret]
            .map(str::to_owned)
    };
    let tool = |args: &[String]| {
        let args: Vec<&str> = args.iter().map(String::as_str).collect();
        let run = run(Some(&database.url), &args, "");
        assert_eq!(run.code, Some(0), "{}", run.stderr);
        run.stdout
    };
    tool(&[&args("limit")[..], &["--count".to_owned(), "4".to_owned()]].concat());
    assert_eq!(limiter.peek(("mails", ANNA)).await.expect("a balance").remaining().round(), 6.0);
    assert_eq!(database.rows_with("anna").await, 0);
    assert!(tool(&args("peek")).starts_with("{\"value\": 6"));
    assert!(tool(&args("check")).contains("true"));
    let reset = |variable: &str, extra: &[&str]| {
        let mut command = Command::new(tool_path());
        command.args(["reset", "mails", ANNA, "--database-url", &database.url]).args(extra);
        command.env("PG_LIMITER_KEY_SECRET_FILE", variable).output().expect("run the tool")
    };
    // Without the secret this is another key, which has no row; with the secret in the variable, it is the same key.
    assert!(reset("", &[]).status.success());
    assert_eq!(limiter.peek(("mails", ANNA)).await.expect("a balance").remaining().round(), 6.0);
    assert!(reset(&secret, &[]).status.success());
    assert_eq!(limiter.peek(("mails", ANNA)).await.expect("a balance").remaining(), 10.0);
    let refused = reset(&secret, &["--key-secret-file", &path("short")]);
    let said = String::from_utf8(refused.stderr).expect("UTF-8");
    assert!(refused.status.code() == Some(2) && said.contains("has 9 bytes"), "{said}");
}
