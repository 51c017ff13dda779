//! The plots of `simulate` and `replay`: their contents and their file formats.

use std::fs;

use roxmltree::{Document, Node};
use serde_json::Value;

use crate::binary::{Run, files, run};
use crate::support::Database;
use crate::support::guide::{GUIDE, README};

const LIMITS: &str = r#"
    [limits.api]
    kind = "token_bucket"
    rate = 10
    period = "1m"
    capacity = 20
    [limits.per_hour]
    kind = "sliding_window"
    rate = 50
    period = "1h"
    [limits.window]
    kind = "fixed_window"
    rate = 2
    period = "1s"
    start = "0s"
"#;
const LOG: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../tests/data/access-sample.log");
const ADMITTED: &str = "#1B5E91";
const RESERVED: &str = "#6FAED9";
const DENIED: &str = "#F8C983";
const DENIED_ELSEWHERE: &str = "#E9E9E9";
const BALANCE: &str = "#222222";

fn done(run: Run) -> Run {
    assert_eq!((run.code, run.stderr.as_str()), (Some(0), ""), "{}", run.stdout);
    run
}

fn texts(svg: &Document<'_>) -> Vec<String> {
    let texts = svg.descendants().filter(|node| node.has_tag_name("text"));
    texts.map(|node| node.text().unwrap_or_default().trim().to_owned()).collect()
}

fn points(node: Node<'_, '_>) -> Vec<(f64, f64)> {
    let points = node.attribute("points").expect("points").split_whitespace();
    let number = |text: &str| text.parse::<f64>().expect("a number");
    points.map(|point| point.split_once(',').map(|(x, y)| (number(x), number(y))).expect("a point")).collect()
}

/// The outlines of the areas of this colour.
fn areas(svg: &Document<'_>, colour: &str) -> Vec<Vec<(f64, f64)>> {
    svg.descendants()
        .filter(|node| node.has_tag_name("polygon") && node.attribute("fill") == Some(colour))
        .map(points)
        .collect()
}

/// The lines of this colour, without the samples in the legend.
fn lines(svg: &Document<'_>, colour: &str) -> Vec<Vec<(f64, f64)>> {
    svg.descendants()
        .filter(|node| node.has_tag_name("polyline") && node.attribute("stroke") == Some(colour))
        .map(points)
        .filter(|points| points.first().is_some_and(|(_, y)| *y > 130.0))
        .collect()
}

/// The height of each bar of an area. Its outline has two corners for each bar, followed by those on the baseline.
fn heights(outline: &[(f64, f64)]) -> Vec<f64> {
    let ground = outline.last().expect("points").1;
    let (bars, corners) = outline.split_at(outline.len() - 2);
    assert!(corners.iter().all(|(_, y)| *y == ground));
    let heights = bars.chunks(2).map(|bar| {
        assert_eq!(bar[0].1, bar[1].1, "a bar is level");
        ground - bar[0].1
    });
    heights.collect()
}

/// One call a second for a minute: bars shorter than a second would have one call or none, depending on the grid.
#[tokio::test(flavor = "multi_thread")]
async fn timestamps_in_whole_seconds_leave_no_bar_empty() {
    let database = Database::empty().await;
    let events = |step: i64, calls: i64| -> String {
        let at = |nth: i64| 1_767_225_600_000 + nth * step;
        (0..calls).map(|nth| format!("{{\"at\": {}, \"limit\": \"api\", \"key\": \"u1\"}}\n", at(nth))).collect()
    };
    for (step, calls) in [(1000, 60), (1000, 10), (1000, 200), (100, 30), (10, 50), (1, 70)] {
        let (_dir, path) = files(&[("limits.toml", LIMITS), ("events.jsonl", &events(step, calls))]);
        let svg = path("x.svg");
        let args = ["replay", "--limits", &path("limits.toml"), "--events", &path("events.jsonl"), "--plot", &svg];
        done(run(Some(&database.url), &args, ""));
        let text = fs::read_to_string(&svg).expect("a picture");
        let svg = Document::parse(&text).expect("XML");
        let denied = areas(&svg, DENIED);
        let offered = match denied.first() {
            Some(denied) => heights(denied),
            None => heights(&areas(&svg, ADMITTED)[0]),
        };
        let empty = offered.iter().filter(|height| **height == 0.0).count();
        assert!(offered.len() >= 10, "{step} ms: {} bars", offered.len());
        assert_eq!(empty, 0, "of {} bars of calls every {step} ms", offered.len());
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn area_heights_match_the_numbers() {
    let database = Database::empty().await;
    let (_dir, path) = files(&[]);
    let svg = path("x.svg");
    let args =
        "simulate --rate 10 --period 10s --start 0s --traffic bursts --calls 4/s --for 60s --bin 1s --json --plot";
    let mut args: Vec<&str> = args.split(' ').collect();
    args.push(&svg);
    let json = done(run(Some(&database.url), &args, "")).stdout;
    let text = fs::read_to_string(&svg).expect("a picture");
    let svg = Document::parse(&text).expect("XML");
    let [admitted, denied] = [ADMITTED, DENIED].map(|colour| areas(&svg, colour));
    assert_eq!([admitted.len(), denied.len()], [3, 3], "one area in each panel");
    assert!(areas(&svg, RESERVED).is_empty() && areas(&svg, DENIED_ELSEWHERE).is_empty());
    assert_eq!(lines(&svg, BALANCE).len(), 3);
    for (panel, line) in json.lines().enumerate() {
        let limit: Value = serde_json::from_str(line).expect("JSON");
        let bars = |part: &str| -> Vec<f64> {
            limit[part].as_array().expect("bars").iter().filter_map(Value::as_f64).collect()
        };
        let offered = bars("bars_offered");
        assert_eq!(offered.len(), 60);
        let most = offered.iter().copied().fold(0.0, f64::max);
        let drawn = heights(&denied[panel]);
        let scale = drawn.iter().copied().fold(0.0, f64::max) / most;
        // To the pixel.
        for (expected, drawn) in [(offered, drawn), (bars("bars_admitted"), heights(&admitted[panel]))] {
            assert_eq!(expected.len(), drawn.len());
            for (expected, drawn) in expected.iter().zip(drawn) {
                assert!((expected * scale - drawn).abs() <= 1.0, "{expected} tokens are {drawn} high");
            }
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_plot_has_titles_legends_and_totals() {
    let database = Database::empty().await;
    let (_dir, path) = files(&[("limits.toml", LIMITS)]);
    let (limits, file) = (path("limits.toml"), path("log.svg"));
    let replay = |more: &[&str]| {
        let mut args =
            vec!["replay", "--limits", &limits, "--apply", "api", "--apply", "per_hour", "--access-log", LOG];
        args.extend(["--plot", &file]);
        args.extend(more);
        let table = done(run(Some(&database.url), &args, "")).stdout;
        (table, fs::read_to_string(&file).expect("a picture"))
    };
    let (table, picture) = replay(&[]);
    // Each limit is replayed alone: the first one's numbers are the same without the second.
    for line in [
        "api: token_bucket, 10 per 1m, capacity 20",
        "per_hour: sliding_window, 50 per 1h",
        "200 requests: 66 admitted, 134 denied (67.0 %)",
    ] {
        assert!(table.contains(line), "{table}");
    }
    let svg = Document::parse(&picture).expect("XML");
    let said = texts(&svg);
    for text in [
        "access-sample.log, limited by remote_addr",
        "api: token_bucket, 10 per 1m, capacity 20; 7 keys together",
        "per_hour: sliding_window, 50 per 1h; 7 keys together",
        "offered 200, admitted 66 (33.0 %), denied 134",
        "calls per 30 s",
        "admitted",
        "denied",
        "offered",
        "time (UTC) on 2015-05-18",
        "08:10",
    ] {
        assert!(said.iter().any(|said| said == text), "no {text:?} in {said:?}");
    }
    assert!(!said.iter().any(|said| said == "balance") && lines(&svg, BALANCE).is_empty(), "not of several keys");

    let (again, picture) = replay(&["--only-key", "75.97.9.59"]);
    assert_eq!(again, table);
    let svg = Document::parse(&picture).expect("XML");
    let said = texts(&svg);
    for text in ["offered 192, admitted 58 (30.2 %), denied 134", "balance", "capacity 20", "capacity 50"] {
        assert!(said.iter().any(|said| said == text), "no {text:?} in {said:?}");
    }
    assert!(said[0].ends_with("the key 75.97.9.59"), "{}", said[0]);
    assert_eq!(lines(&svg, BALANCE).len(), 2);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_plot_shows_every_event() {
    let database = Database::empty().await;
    let events = r#"{"at": 1767225600000, "limit": "window", "key": "<a & \"b\">"}
{"at": 1767225600100, "op": "check", "limit": "window", "key": "other"}
{"at": 1767225600200, "limit": "window", "key": "<a & \"b\">", "count": 1.5, "reserve": true}
{"at": 1767225600200, "limit": "unknown"}
{"at": 1767225600300, "all": [{"limit": "window", "key": "<a & \"b\">"}, {"limit": "api"}]}
"#;
    let (_dir, path) = files(&[("limits.toml", LIMITS), ("e.jsonl", events)]);
    let (limits, file, events) = (path("limits.toml"), path("x.svg"), path("e.jsonl"));
    let args = ["replay", "--limits", &limits, "--events", &events, "--plot", &file, "--json", "--bin", "100ms"];
    let decisions = done(run(Some(&database.url), &args, "")).stdout;
    // The queries for balances, which the plot needs, print no line.
    assert_eq!(decisions.lines().count(), 5);
    assert_eq!(done(run(Some(&database.url), &[&args[..5], &["--json"]].concat(), "")).stdout, decisions);
    let text = fs::read_to_string(&file).expect("a picture");
    let svg = Document::parse(&text).expect("XML");
    let said = texts(&svg);
    for text in [
        "e.jsonl",
        "window: fixed_window, 2 per 1s, start 0s",
        "offered 3.5, admitted 2.5 (71.4 %), denied 1",
        "offered 1, admitted 0 (0.0 %), denied 0, by another limit 1",
        "tokens per 100 ms",
        "reserved: admitted after a wait",
        "denied by another limit",
    ] {
        assert!(said.iter().any(|said| said == text), "no {text:?} in {said:?}");
    }
    assert_eq!([RESERVED, DENIED, DENIED_ELSEWHERE].map(|colour| areas(&svg, colour).len()), [1, 1, 1]);
    let named = run(Some(&database.url), &[&args[..], &["--only-key", "<a & \"b\">"]].concat(), "");
    assert_eq!(done(named).stdout, decisions);
    let text = fs::read_to_string(&file).expect("a picture");
    assert!(texts(&Document::parse(&text).expect("XML"))[0].ends_with("the key <a & \"b\">"));
    run(Some(&database.url), &[&args[..], &["--only-key", "secret"]].concat(), "").refuses(2, &["--only-key"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn png_shows_the_same_plot_as_svg() {
    let database = Database::empty().await;
    let (_dir, path) = files(&[]);
    let (svg, png) = (path("x.svg"), path("X.PNG"));
    for file in [&svg, &png] {
        let args = ["simulate", "--rate", "10", "--period", "10s", "--traffic", "bursts", "--plot", file];
        done(run(Some(&database.url), &args, ""));
    }
    let text = fs::read_to_string(&svg).expect("a picture");
    let svg = Document::parse(&text).expect("XML");
    let size = ["width", "height"].map(|name| svg.root_element().attribute(name).expect("a size").parse::<u32>());
    let mut png =
        png::Decoder::new(std::io::BufReader::new(fs::File::open(&png).expect("a picture"))).read_info().expect("PNG");
    let mut pixels = vec![0; png.output_buffer_size().expect("a size")];
    let info = png.next_frame(&mut pixels).expect("a frame");
    assert_eq!(size, [Ok(info.width / 2), Ok(info.height / 2)], "two pixels for one in both directions");
    let count = |colour: [u8; 3]| pixels.chunks(3).filter(|pixel| *pixel == colour).count();
    let all = pixels.len() / 3;
    assert!(count([0xff; 3]) > all / 2, "mostly background");
    for colour in [[0x1b, 0x5e, 0x91], [0xf8, 0xc9, 0x83], [0x22; 3], [0xec; 3]] {
        assert!(count(colour) > all / 1000, "{colour:?}: {} of {all}", count(colour));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn plots_work_for_no_few_and_many_calls() {
    let database = Database::empty().await;
    let one = "{\"at\": 1767225600123, \"limit\": \"api\"}\n";
    // The last panel has no calls.
    let idle = format!("{one}{{\"at\": 1767225600124, \"limit\": \"window\", \"count\": 5}}\n");
    let far =
        "{\"at\": -5364662400000, \"limit\": \"api\"}\n{\"at\": 7258118399999, \"limit\": \"api\", \"count\": 1e-9}\n";
    let many: String =
        (0..20_000).map(|n| format!("{{\"at\": {n}, \"limit\": \"api\", \"key\": \"k{}\"}}\n", n % 7)).collect();
    let (_dir, path) = files(&[
        ("limits.toml", LIMITS),
        ("none.jsonl", ""),
        ("one.jsonl", one),
        ("far.jsonl", far),
        ("idle.jsonl", &idle),
        ("many.jsonl", &many),
        ("huge.toml", "[limits.api]\nkind = \"token_bucket\"\nrate = 1e13\nperiod = \"36525days\"\ncapacity = 0\n"),
    ]);
    for (limits, events, panels, words) in [
        ("limits.toml", "none.jsonl", 3, "no calls"),
        ("limits.toml", "one.jsonl", 1, "offered 1, admitted 1 (100.0 %), denied 0"),
        ("limits.toml", "idle.jsonl", 2, "time (UTC)"),
        ("limits.toml", "far.jsonl", 1, "1900"),
        ("limits.toml", "many.jsonl", 1, "offered 20,000, admitted"),
        ("huge.toml", "far.jsonl", 1, "api: token_bucket, 1000"),
    ] {
        for ending in ["svg", "png"] {
            let file = path(&format!("x.{ending}"));
            let args = ["replay", "--limits", &path(limits), "--events", &path(events), "--plot", &file];
            let replay = run(Some(&database.url), &args, "");
            assert_eq!(replay.code, Some(0), "{}", replay.stderr);
            let bytes = fs::read(&file).expect("a picture");
            if ending == "svg" {
                let text = String::from_utf8(bytes).expect("UTF-8");
                let svg = Document::parse(&text).expect("XML");
                let said = texts(&svg);
                assert_eq!(said.iter().filter(|text| text.starts_with("offered ")).count(), panels, "{said:?}");
                assert!(said.iter().any(|text| text.starts_with(words)), "{events}: {said:?}");
                assert!(text.len() < 60_000 && !text.contains("NaN") && !text.contains("inf"), "{events}");
            } else {
                assert!(bytes.starts_with(b"\x89PNG"));
            }
        }
    }
}

/// A gate takes no tokens, and a log is only limited by the limits that are applied.
#[tokio::test(flavor = "multi_thread")]
async fn only_limits_in_use_that_take_tokens_have_a_panel() {
    let database = Database::empty().await;
    let limits = format!("[limits.banned]\nkind = \"gate\"\n{LIMITS}");
    let one = "{\"at\": 1767225600123, \"all\": [{\"limit\": \"banned\"}, {\"limit\": \"api\"}]}\n";
    let banned = "{\"at\": 1767225600123, \"limit\": \"banned\"}\n";
    let (_dir, path) = files(&[("limits.toml", &limits), ("none", ""), ("one.jsonl", one), ("banned.jsonl", banned)]);
    let (svg, none, limits) = (path("x.svg"), path("none"), path("limits.toml"));
    let replay = |recorded: &[&str]| {
        let args = [&["replay", "--limits", &limits, "--plot", &svg], recorded].concat();
        run(Some(&database.url), &args, "")
    };
    let gate_first = ["--apply", "banned", "--apply", "api", "--apply", "window", "--access-log"];
    for (recorded, panels) in [
        (&["--events", &none][..], 3),
        (&["--events", &path("one.jsonl")], 1),
        (&["--apply", "api", "--access-log", &none], 1),
        (&[&gate_first[..], &[&none]].concat(), 2),
        (&[&gate_first[..], &[LOG]].concat(), 2),
        (&[&gate_first[..], &[LOG, "--only-key", "75.97.9.59"]].concat(), 2),
    ] {
        let done = replay(recorded);
        assert_eq!(done.code, Some(0), "{recorded:?}: {}", done.stderr);
        let text = fs::read_to_string(&svg).expect("a picture");
        let svg = Document::parse(&text).expect("XML");
        let said = texts(&svg);
        assert_eq!(said.iter().filter(|text| text.starts_with("offered ")).count(), panels, "{recorded:?}: {said:?}");
        assert!(!said.iter().any(|text| text.starts_with("banned")), "{said:?}");
        if recorded.contains(&"--only-key") {
            assert_eq!(lines(&svg, BALANCE).len(), panels, "{recorded:?}: each has its balance");
        }
    }
    for recorded in [&["--events", &*path("banned.jsonl")][..], &["--apply", "banned", "--access-log", LOG]] {
        replay(recorded).refuses(2, &["--plot has nothing to draw", "takes tokens"]);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_title_of_wide_characters_is_whole_if_it_fits() {
    let database = Database::empty().await;
    for (name, is_whole) in [("キー".repeat(15), true), ("é".repeat(30), true), ("キー".repeat(60), false)] {
        let event = format!("{{\"at\": 1767225600123, \"limit\": \"api\", \"key\": \"{name}\"}}\n");
        let (_dir, path) = files(&[("limits.toml", LIMITS), ("events.jsonl", &event)]);
        let svg = path("x.svg");
        let args = ["replay", "--limits", &path("limits.toml"), "--events", &path("events.jsonl"), "--plot", &svg];
        done(run(Some(&database.url), &[&args[..], &["--only-key", &name]].concat(), ""));
        let text = fs::read_to_string(&svg).expect("a picture");
        let heading = texts(&Document::parse(&text).expect("XML"))[0].clone();
        assert_eq!(heading.ends_with(&format!("the key {name}")), is_whole, "{heading}");
        assert!(is_whole || heading.ends_with('…'), "{heading}");
    }
}

#[test]
fn invalid_plot_options_are_rejected_at_once() {
    let (_dir, path) = files(&[("limits.toml", LIMITS)]);
    let limits = path("limits.toml");
    let replay = |more: &[&str], words: &[&str]| {
        let args = [&["replay", "--limits", &limits][..], more].concat();
        let replay = run(Some("postgres://nobody@127.0.0.1:1/none"), &args, "");
        assert_eq!((replay.code, replay.stdout.as_str()), (Some(2), ""), "{}", replay.stderr);
        for word in words {
            assert!(replay.stderr.contains(word), "no {word:?} in {}", replay.stderr);
        }
    };
    let log = ["--apply", "api", "--access-log", LOG];
    replay(&[&log[..], &["--plot", "x.gif"]].concat(), &["x.gif", ".svg", ".png"]);
    replay(&[&log[..], &["--plot", "no/x.png"]].concat(), &["no folder no"]);
    replay(&[&log[..], &["--only-key", "k"]].concat(), &["--plot"]);
    replay(&[&log[..], &["--apply", "api"]].concat(), &["--apply api", "twice: give it once"]);
    replay(&[&log[..], &["--apply", "window", "--json"]].concat(), &["--json", "--apply once"]);
    replay(&[&log[..], &["--plot", &path("x.svg"), "--bin", "1ms"]].concat(), &["bars", "--bin"]);
    replay(&[&log[..], &["--bin", "zz"]].concat(), &["'zz' for '--bin"]);
    assert!(fs::metadata(path("x.svg")).is_err());
}

#[cfg(target_os = "linux")]
#[tokio::test(flavor = "multi_thread")]
async fn a_plot_that_cannot_be_written_is_a_failure() {
    let database = Database::empty().await;
    let (dir, path) = files(&[]);
    let link = path("x.svg");
    // Writes to this device always fail.
    std::os::unix::fs::symlink("/dev/full", dir.path().join("x.svg")).expect("a link");
    let args = ["simulate", "--rate", "1", "--period", "1s", "--json", "--plot", &link];
    let simulate = run(Some(&database.url), &args, "");
    assert_eq!(simulate.code, Some(3), "{}", simulate.stderr);
    assert!(simulate.stderr.contains("cannot write"), "{}", simulate.stderr);
}

/// The documents that show the plot of the three kinds have the right command, output and picture.
#[tokio::test(flavor = "multi_thread")]
async fn the_documented_plot_of_the_three_kinds_is_current() {
    let database = Database::empty().await;
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/..");
    let (_dir, path) = files(&[]);
    let file = path("kinds.svg");
    let mut documents = 0;
    let shown = fs::read_to_string(format!("{folder}/assets/README.md")).expect("a document");
    let guide = GUIDE.iter().map(|(chapter, text)| (*chapter, *text));
    for (document, text) in guide.chain([("README.md", README), ("assets/README.md", &shown)]) {
        let Some((before, after)) = text.split_once("--plot assets/kinds.svg") else { continue };
        let command = before.rsplit("pg-limiter simulate").next().expect("a command").replace('\\', " ");
        let mut args = vec!["simulate"];
        args.extend(command.split_whitespace());
        args.extend(["--plot", &file]);
        let printed = done(run(Some(&database.url), &args, "")).stdout;
        assert!(after.contains(printed.trim_end()), "{document} does not have:\n{printed}");
        documents += 1;
    }
    assert!(documents > 0);
    let drawn = fs::read_to_string(&file).expect("a picture");
    let kept = format!("{folder}/assets/kinds.svg");
    if std::env::var_os("BLESS").is_some() {
        fs::write(&kept, &drawn).expect("write the picture");
    }
    assert!(
        fs::read_to_string(&kept).is_ok_and(|kept| kept == drawn),
        "assets/kinds.svg differs from the plot: BLESS=1 updates it"
    );
    assert!(drawn.len() < 60_000, "{}", drawn.len());
}
