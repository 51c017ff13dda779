/// A number of tokens. It converts from any number type: `5`, `2.5`, `body.len()`, `1_u64 << 40`. Every method with a token
/// count accepts `impl Into<Tokens>`.
///
/// Tokens and balances are `f64`, so whole numbers above 2<sup>53</sup> are rounded to the nearest `f64`.
#[derive(Clone, Copy, Debug, PartialEq, PartialOrd)]
pub struct Tokens(f64);

impl Tokens {
    /// Returns the number as `f64`.
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
