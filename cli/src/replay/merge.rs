use crate::replay::Timed;

/// Merges two sequences of calls, each in the order of time. If times are equal, `first` goes first.
pub(super) fn in_time_order<T>(
    first: impl IntoIterator<Item = Timed<T>>,
    second: impl IntoIterator<Item = Timed<T>>,
) -> impl Iterator<Item = Timed<T>> {
    let (mut first, mut second) = (first.into_iter().peekable(), second.into_iter().peekable());
    std::iter::from_fn(move || match (first.peek(), second.peek()) {
        (Some(one), Some(other)) if other.at < one.at => second.next(),
        (Some(_), _) => first.next(),
        (None, _) => second.next(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use pg_limiter::Call;
    use pg_limiter::Op;

    fn row(tag: char, times: &[i64]) -> Vec<Timed<char>> {
        times.iter().map(|at| Timed { at: *at, op: Op::Limit, call: Call::from(("a", "")), tag }).collect()
    }

    #[test]
    fn merging_keeps_every_event_and_takes_ties_from_the_first() {
        let merged: Vec<(i64, char)> =
            in_time_order(row('q', &[1, 3, 3, 9]), row('c', &[0, 3, 4])).map(|timed| (timed.at, timed.tag)).collect();
        assert_eq!(merged, [(0, 'c'), (1, 'q'), (3, 'q'), (3, 'q'), (3, 'c'), (4, 'c'), (9, 'q')]);
        assert_eq!(in_time_order(row('q', &[]), row('c', &[5])).count(), 1);
    }
}
