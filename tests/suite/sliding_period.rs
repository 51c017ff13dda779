//! The most that a sliding window admits in intervals that do not begin with one of its parts.

use pg_limiter::sqlx;

use crate::support::Database;

const RATE: f64 = 100.0;
const SECOND: i64 = 1_000_000;

/// The oldest part is weighted by how much of it remains in the window, as if its calls had come evenly. If they all came at
/// its end, they are still within the period when they hardly count any more. So the bounds that always hold are: the rate in
/// a period less one part, and less than twice the rate in a whole period. A greedy caller at the worst moments stays within
/// both.
#[tokio::test]
async fn a_sliding_window_admits_at_most_its_rate_in_a_period_less_one_part() {
    let database = Database::migrated().await;
    for parts in [1, 2, 5] {
        let step = SECOND / parts / 10;
        // Takes everything at each step, starting at the end of a part.
        let first = 1_767_225_600 * SECOND + SECOND / parts - 1;
        let mut admitted: Vec<(i64, f64)> = Vec::new();
        for at in (0..40 * parts).map(|nth| first + nth * step) {
            let sql = "SELECT (rate_limit.check_with('w', $1, kind => 'sliding_window', rate => $2, period => '1 second', \
                       resolution => $3, start => '0', count => 0, at => to_timestamp($4 / 1e6))).value";
            let left: f64 = sqlx::query_scalar(sql)
                .bind(parts.to_string())
                .bind(RATE)
                .bind(parts as i32)
                .bind(at as f64)
                .fetch_one(&database.pool)
                .await
                .expect("a balance");
            let sql = "SELECT ok FROM rate_limit.limit_with('w', $1, kind => 'sliding_window', rate => $2, period => '1 second', \
                       resolution => $3, start => '0', count => $5, at => to_timestamp($4 / 1e6))";
            let count = left.floor();
            let ok: bool = sqlx::query_scalar(sql)
                .bind(parts.to_string())
                .bind(RATE)
                .bind(parts as i32)
                .bind(at as f64)
                .bind(count)
                .fetch_one(&database.pool)
                .await
                .expect("a decision");
            assert!(ok, "{count} of {left}");
            admitted.push((at, count));
        }
        let most_within = |length: i64| {
            let within = |from: i64, at: i64| (from..from + length).contains(&at);
            let sum = |from| admitted.iter().filter(|(at, _)| within(from, *at)).map(|(_, count)| count).sum::<f64>();
            admitted.iter().map(|(from, _)| sum(*from)).fold(0.0, f64::max)
        };
        let (less_a_part, whole) = (most_within(SECOND - SECOND / parts), most_within(SECOND));
        assert!(less_a_part <= RATE, "{parts} parts: {less_a_part} in a period less one");
        assert!(RATE < whole && whole < 2.0 * RATE, "{parts} parts: {whole} in a whole period");
    }
}
