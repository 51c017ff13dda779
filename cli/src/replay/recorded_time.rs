/// The valid times: the years 1800 to 2199, in microseconds since the Unix epoch. The range rejects times in units other
/// than milliseconds, and microseconds fit in 64 bits.
pub(crate) const YEARS: std::ops::RangeInclusive<i64> = -5_364_662_400_000_000..=7_258_118_399_999_999;
