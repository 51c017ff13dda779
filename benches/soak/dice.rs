/// A fast random number generator (xorshift).
pub(super) struct Dice(u64);

impl Dice {
    pub(super) const fn new(seed: u64) -> Self {
        Self(seed | 1) // The seed must not be 0, which the generator would never leave.
    }

    pub(super) fn roll(&mut self, sides: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        ((u128::from(self.0) * sides as u128) >> 64) as usize
    }

    /// Returns another generator, for another task.
    pub(super) fn another(&mut self) -> Self {
        // Generators with similar seeds return similar numbers at first, so the seed is multiplied.
        Self::new((self.roll(usize::MAX) as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15))
    }
}
