/// The number of repetitions of a test that repeats its assertions on random data: a quarter of `all`, or the percentage in
/// `PG_LIMITER_TEST_CASES`. `tests/long` makes all of them.
pub fn cases(all: u32) -> u32 {
    let percent = std::env::var("PG_LIMITER_TEST_CASES").map_or(25, |percent| percent.parse().expect("a percentage"));
    (all * percent / 100).max(1)
}
