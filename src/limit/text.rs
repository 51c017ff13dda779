use std::ops::RangeInclusive;

/// Whether the length of a text in bytes is in this range, and PostgreSQL can store the text: it contains no NUL.
pub(crate) fn is_storable(text: &str, bytes: RangeInclusive<usize>) -> bool {
    bytes.contains(&text.len()) && !text.contains('\0')
}
