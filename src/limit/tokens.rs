/// A number of tokens, from any type of number: `5`, `2.5`, `body.len()`, `1_u64 << 40`. Every method that takes tokens takes
/// `impl Into<Tokens>`.
///
/// Balances are `f64`: a whole number above 2<sup>53</sup> is rounded to the nearest one that `f64` has, as balances of that
/// size are.
#[derive(Clone, Copy, Debug, PartialEq, PartialOrd)]
pub struct Tokens(f64);

impl Tokens {
    /// The number.
    pub const fn get(self) -> f64 {
        self.0
    }
}

macro_rules! from_numbers {
    ($($number:ty)*) => { $(
        impl From<$number> for Tokens {
            fn from(number: $number) -> Self {
                Self(number as f64)
            }
        }
    )* };
}

from_numbers!(u8 u16 u32 u64 usize i8 i16 i32 i64 isize f32 f64);
