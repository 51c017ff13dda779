//! Log collectors write something before each line of a server: its forms.

use std::sync::LazyLock;

use regex::Regex;

/// A program that writes a text before each line.
#[derive(Debug)]
pub(super) struct Collector {
    pub(super) name: &'static str,
    before: Regex,
    /// How its lines begin, for messages.
    pub(super) begin: &'static str,
}

pub(super) static COLLECTORS: LazyLock<[Collector; 5]> = LazyLock::new(|| {
    let whole = |before: &str| Regex::new(&format!("^(?:{before})")).expect("a regular expression");
    let collector = |name, before: &str, begin| Collector { name, before: whole(before), begin };
    let time =
        "[0-9]{4}-[0-9]{2}-[0-9]{2}[Tt][0-9]{2}:[0-9]{2}:[0-9]{2}(?:[.,][0-9]+)?(?:[Zz]|[+-][0-9]{2}:?[0-9]{2}) ";
    let classic_time = "[A-Za-z]{3} +[0-9]+ (?:[0-9]{4} )?[0-9]{2}:[0-9]{2}:[0-9]{2}[^ ]* ";
    // The values in an element may have `\]` and `\"`.
    let structured_data = r#"(?:-|(?:\[(?:[^"\]]|"(?:[^"\\]|\\.)*")*\])+) "#;
    // The host, the program, its process, and the kind of the message; then the data.
    let rfc_5424 = format!(r"1 (?:- |{time})(?:[^ ]* ){{4}}{structured_data}\x{{feff}}*");
    // Also with the priority, `<190>`.
    let syslog = format!("(?:<[0-9]+>)?(?:{rfc_5424}|(?:{time}|{classic_time})[^ ]* [^ ]+: )");
    // `docker compose logs` and `docker service logs`, also with a time, and in colours, as on a terminal and with `--ansi always`.
    let colours = r"(?:\x1b\[[0-9;]*m)*";
    let compose = format!(r"{colours}[A-Za-z0-9._@-]+ *{colours} *\|{colours} {colours}(?:{time})?");
    // `kubectl logs --prefix`, also with a time.
    let kubectl = format!(r"\[pod/[^\] ]+\] (?:{time})?");
    // The files of Kubernetes.
    let cri = format!("{time}std(?:out|err) F ");
    [
        collector("syslog", &syslog, "as lines of syslog: Dec 16 00:00:00 host nginx: .."),
        // `docker logs -t`, `kubectl logs --timestamps`.
        collector("docker", time, "with a time like 2026-01-01T00:00:00.000000000Z"),
        collector("compose", &compose, "with the name of a service: web-1  | .."),
        collector("kubectl", &kubectl, "with the name of a pod: [pod/web-1/nginx] .."),
        collector("cri", &cri, "as in Kubernetes: 2026-01-01T00:00:00.000000000Z stdout F .."),
    ]
});

/// The collector of a line, and the line without its text. Lines of `cri` begin as those of `docker`.
pub(super) fn collected(line: &str) -> Option<(&'static Collector, &str)> {
    let collected = COLLECTORS.iter().filter_map(|collector| Some((collector, collector.rest(line)?)));
    collected.min_by_key(|(_, rest)| rest.len())
}

impl Collector {
    pub(super) fn rest<'l>(&self, line: &'l str) -> Option<&'l str> {
        Some(&line[self.before.find(line)?.end()..])
    }
}

/// How to use the time that a collector writes, which has no year in the classic lines of syslog.
pub(super) fn own_time(collector: &str, line: &str) -> &'static str {
    let text = line.split_once('>').filter(|(priority, _)| priority.starts_with('<')).map_or(line, |(_, text)| text);
    if collector == "syslog" && text.starts_with(|first: char| first.is_ascii_alphabetic()) {
        return "complete that of syslog, as with sed -E 's/^(<[0-9]+>)?(.{15})/YEAR \\2 +0000/' FILE, with the year and the \
                zone of the lines, and write it into the format, as in --log-format '%{%Y %b %e %H:%M:%S %z}t ..'";
    }
    "write the collector's text into it, as in --log-format '$time_iso8601 ..'"
}
