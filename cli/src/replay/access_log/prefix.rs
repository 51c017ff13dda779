//! What a log collector writes before each line of a web server.

/// The collector that wrote the lines.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Prefix {
    #[default]
    None,
    /// `Dec 16 00:00:00 host nginx: `, or with a time in ISO 8601; also with the priority, `<190>`.
    Syslog,
    /// `2026-01-01T00:00:00.000000000Z `: `docker logs -t`, `kubectl logs --timestamps`.
    Docker,
    /// `web-1  | `: `docker compose logs`, also with a time.
    Compose,
    /// `2026-01-01T00:00:00.000000000Z stdout F `: the files of Kubernetes.
    Cri,
}

impl Prefix {
    pub(super) const NAMED: [(&str, Self); 4] =
        [("syslog", Self::Syslog), ("docker", Self::Docker), ("compose", Self::Compose), ("cri", Self::Cri)];

    /// The line without the prefix, or the reason if it has none.
    pub(super) fn strip(self, line: &str) -> Result<&str, &'static str> {
        match self {
            Self::None => Ok(line),
            Self::Syslog => syslog(line).ok_or("it does not begin as lines of syslog: Dec 16 00:00:00 host nginx: .."),
            Self::Docker => time(line).ok_or("it does not begin with a time like 2026-01-01T00:00:00.000000000Z"),
            Self::Compose => compose(line).ok_or("it does not begin with the name of a service: web-1  | .."),
            Self::Cri => {
                cri(line).ok_or("it does not begin as in Kubernetes: 2026-01-01T00:00:00.000000000Z stdout F ..")
            }
        }
    }
}

fn syslog(line: &str) -> Option<&str> {
    let line = match line.strip_prefix('<') {
        Some(rest) => rest.split_once('>').filter(|(priority, _)| is_digits(priority))?.1,
        None => line,
    };
    let rest = time(line).or_else(|| classic_time(line))?;
    let (_host, rest) = rest.split_once(' ')?;
    let (tag, rest) = rest.split_once(": ")?;
    (!tag.is_empty() && !tag.contains(' ')).then_some(rest)
}

/// Skips `Dec 16 00:00:00 `, also with a blank in place of the first digit of the day, or with a year.
fn classic_time(line: &str) -> Option<&str> {
    let (month, rest) = line.split_once(' ')?;
    let (day, rest) = rest.trim_start_matches(' ').split_once(' ')?;
    let (clock, rest) = match rest.split_once(' ')? {
        (year, rest) if year.len() == 4 && is_digits(year) => rest.split_once(' ')?,
        clock => clock,
    };
    let is_clock = clock.get(..8).is_some_and(|clock| clock.bytes().filter(|byte| *byte == b':').count() == 2);
    let is_month = month.len() == 3 && month.bytes().all(|byte| byte.is_ascii_alphabetic());
    (is_month && is_digits(day) && is_clock).then_some(rest)
}

/// Skips a time in ISO 8601, and the blank after it.
fn time(line: &str) -> Option<&str> {
    let (time, rest) = line.split_once(' ')?;
    time.parse::<jiff::Timestamp>().ok().map(|_| rest)
}

fn compose(line: &str) -> Option<&str> {
    let (name, rest) = line.split_once('|')?;
    let (name, rest) = (name.trim_end(), rest.strip_prefix(' ')?);
    let is_name = !name.is_empty() && name.chars().all(|c| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.'));
    is_name.then(|| time(rest).unwrap_or(rest))
}

fn cri(line: &str) -> Option<&str> {
    let rest = time(line)?;
    ["stdout F ", "stderr F "].iter().find_map(|stream| rest.strip_prefix(stream))
}

fn is_digits(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_prefix_of_every_collector_is_removed() {
        for (prefix, line) in [
            (Prefix::None, "::1 - x"),
            (Prefix::Syslog, "Dec 16 00:00:00 host nginx: ::1 - x"),
            (Prefix::Syslog, "Dec  6 00:00:00 host nginx[123]: ::1 - x"),
            (Prefix::Syslog, "Dec 16 2026 00:00:00 host nginx: ::1 - x"),
            (Prefix::Syslog, "<190>Dec 16 00:00:00 host nginx: ::1 - x"),
            (Prefix::Syslog, "2026-12-16T00:00:00.123456+01:00 host nginx: ::1 - x"),
            (Prefix::Docker, "2026-12-16T00:00:00.123456789Z ::1 - x"),
            (Prefix::Compose, "web-1  | ::1 - x"),
            (Prefix::Compose, "web-1  | 2026-12-16T00:00:00.123456789Z ::1 - x"),
            (Prefix::Cri, "2026-12-16T00:00:00.123456789Z stdout F ::1 - x"),
        ] {
            assert_eq!(prefix.strip(line), Ok("::1 - x"), "{line}");
        }
        let others = [Prefix::Syslog, Prefix::Docker, Prefix::Compose, Prefix::Cri];
        for line in ["", " ", "|", "203.0.113.1 - - [17/May/2015:10:05:03 +0000] \"GET /a|b HTTP/1.1\" 200 1"] {
            assert!(others.iter().all(|prefix| prefix.strip(line).is_err()), "{line}");
        }
    }
}
