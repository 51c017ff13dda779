/// The years 1800 to 2199, in microseconds since the Unix epoch: times in other units do not pass for milliseconds, and
/// 64 bits are enough to count in.
pub(crate) const YEARS: std::ops::RangeInclusive<i64> = -5_364_662_400_000_000..=7_258_118_399_999_999;
