//! Short texts without an allocation, so that a limit can be copied.

use std::fmt;

/// A text of up to `N` bytes, at most 255.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct Short<const N: usize> {
    bytes: [u8; N],
    len: u8,
}

impl<const N: usize> Short<N> {
    /// The beginning of this text, as far as it fits.
    pub(crate) fn cut(text: &str) -> Self {
        let len = text.floor_char_boundary(N);
        let mut bytes = [0; N];
        bytes[..len].copy_from_slice(&text.as_bytes()[..len]);
        Self { bytes, len: len as u8 }
    }

    pub(crate) fn as_str(&self) -> &str {
        std::str::from_utf8(&self.bytes[..usize::from(self.len)]).unwrap_or_default()
    }
}

impl<const N: usize> fmt::Debug for Short<N> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.as_str().fmt(f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_text_is_cut_between_characters() {
        assert_eq!(Short::<3>::cut("ab").as_str(), "ab");
        assert_eq!(Short::<3>::cut("abcd").as_str(), "abc");
        assert_eq!(Short::<3>::cut("abüc").as_str(), "ab");
    }
}
