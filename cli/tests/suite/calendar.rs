//! Calendar windows in the tool: simulated, plotted and defined on the command line.

use serde_json::Value;

use crate::binary::{files, run};
use crate::support::Database;

#[tokio::test(flavor = "multi_thread")]
async fn calendar_windows_are_simulated_and_plotted() {
    let database = Database::empty().await;
    let (_dir, path) = files(&[]);
    let picture = path("calendar.svg");
    let args = "--zone Etc/GMT+12 --traffic constant --calls 1/h --for 4d --json --plot";
    let args = ["simulate", "--rate", "10", "--every", "1 day"].into_iter().chain(args.split(' ')).chain([&*picture]);
    let args: Vec<&str> = args.collect();
    let simulated = run(Some(&database.url), &args, "");
    assert_eq!(simulated.code, Some(0), "{}", simulated.stderr);
    let limits: Vec<Value> = simulated.stdout.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect();
    assert_eq!(limits.len(), 1, "other kinds have no such span");
    assert_eq!((&limits[0]["kind"], &limits[0]["offered"]), (&"calendar_window".into(), &96.into()));
    let admitted = limits[0]["admitted"].as_u64().expect("a number");
    assert!((40..=50).contains(&admitted), "ten on each of four or five days, not {admitted}");
    let drawn = std::fs::read_to_string(&picture).expect("a picture");
    assert!(drawn.contains("calendar_window, 10 per 1 day, zone Etc/GMT+12"), "{drawn}");
}

#[tokio::test(flavor = "multi_thread")]
async fn calendar_windows_are_defined_on_the_command_line() {
    let database = Database::migrated().await;
    let tool = |every: &str, more: &str| {
        let mut args = vec!["limit", "a", "u1", "--rate", "1", "--every", every];
        args.extend(more.split(' ').filter(|arg| !arg.is_empty()));
        run(Some(&database.url), &args, "")
    };
    tool("100 years", "--zone Europe/Berlin --anchor 1999-12-31").says(0, "allowed, 0 left");
    assert_eq!(tool("100 years", "--zone Europe/Berlin --anchor 1999-12-31").code, Some(1));
    tool("1 fortnight", "").refuses(2, &["1 fortnight", "1 month"]);
    let both = tool("1 day", "--period 1d");
    assert!(
        both.code == Some(2) && both.stderr.contains("'--every <SPAN>' cannot be used with '--period"),
        "{}",
        both.stderr
    );
    tool("1 day", "--zone Berlin2").refuses(2, &["Berlin2"]);
    tool("1 day", "--kind fixed_window").refuses(2, &["every does not apply"]);
    let unknown = tool("1 day", "--zone Mars/Phobos");
    assert!(unknown.code != Some(0) && unknown.stderr.contains("\"Mars/Phobos\""), "{}", unknown.stderr);
}
