//! The tool supports limits with shards.

use crate::binary::run;
use crate::support::Database;

#[tokio::test]
async fn the_tool_supports_shards() {
    let database = Database::migrated().await;
    let url = Some(database.url.as_str());
    let limit = |shards| ["--rate", "20", "--period", "36500d", "--shards", shards];
    for _ in 0..20 {
        let allowed = run(url, &[&["limit", "deploy", "k"][..], &limit("4")].concat(), "");
        assert_eq!((allowed.code, allowed.stderr.as_str()), (Some(0), ""));
    }
    assert_eq!(run(url, &[&["limit", "deploy", "k"][..], &limit("4")].concat(), "").code, Some(1));
    assert_eq!(database.rows().await, 4);
    let warned = run(url, &[&["peek", "deploy", "l"][..], &limit("5")].concat(), "");
    assert!(
        warned.code == Some(0) && warned.stderr.contains("warning: limit \"deploy\": 20 tokens over 5"),
        "{}",
        warned.stderr
    );
    run(url, &[&["limit", "deploy", "k"][..], &limit("21")].concat(), "")
        .refuses(2, &["20 tokens over 21 shards", "at most 20"]);

    let file = tempfile::NamedTempFile::with_suffix(".toml").expect("a file");
    let text = "[limits.a]\nkind = \"fixed_window\"\nrate = 10\nperiod = \"1h\"\nstart = \"0s\"\nshards = 2\n";
    std::fs::write(file.path(), text).expect("written");
    let path = file.path().to_str().expect("a path");
    let events: String = (0..12)
        .map(|nth| format!("{{\"at\": {}, \"limit\": \"a\", \"key\": \"k\"}}\n", 1_767_225_600_000_i64 + nth))
        .collect();
    let replayed = run(url, &["replay", "--limits", path, "--events", "-", "--json"], &events);
    assert_eq!(
        replayed.stdout.matches("\"ok\":true").count() + replayed.stdout.matches("\"ok\": true").count(),
        10,
        "{}",
        replayed.stdout
    );
    assert!(replayed.stdout.lines().last().is_some_and(|line| line.contains("3599989")), "{}", replayed.stdout);
}
