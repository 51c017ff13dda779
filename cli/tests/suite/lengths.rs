//! Months and years have no fixed length, so the tool rejects them wherever a length is given.

use crate::binary::{files, run};

#[tokio::test(flavor = "multi_thread")]
async fn months_and_years_are_rejected_by_the_tool() {
    let inline = |period: &'static str, start: &'static str| {
        ["--kind", "fixed_window", "--rate", "1", "--period", period, "--start", start]
    };
    for length in ["1 month", "1M", "1y"] {
        let value = format!("\"{length}\"");
        let words = [value.as_str(), "months and years", "\"30d\""];
        for limit in [inline(length, "1h"), inline("1h", length)] {
            run(None, &[&["limit", "a", "u1"][..], &limit].concat(), "").refuses(2, &words);
            run(None, &[&["simulate"][..], &limit].concat(), "").refuses(2, &words);
        }
        let limits_file =
            format!("[limits.a]\nkind = \"fixed_window\"\nrate = 1\nperiod = \"{length}\"\nstart = \"1h\"\n");
        let (_dir, path) = files(&[("limits.toml", &limits_file)]);
        let replay = ["replay", "--limits", &path("limits.toml"), "--events", "-"];
        run(None, &replay, "").refuses(2, &words);
        run(None, &["simulate", "--rate", "1", "--period", "1m", "--for", length], "").refuses(2, &words);
        // This argument is checked together with the others, and the message has more lines.
        let refused = run(None, &["doctor", "--old-transaction", length], "");
        assert_eq!(refused.code, Some(2), "{}", refused.stderr);
        words.iter().for_each(|word| assert!(refused.stderr.contains(word), "no {word:?} in: {}", refused.stderr));
    }
}
