use crate::call::{Item, Key, LimitRef};

/// What is decided together: one [`Item`] or several, all charged or none.
///
/// Every method that takes `impl Into<Call>` takes `("limit", "key")`, `("limit", "key", 2)`, an [`Item`], or an
/// array or `Vec` of items.
///
/// ```
/// use pg_limiter::{Call, Item};
/// let call = Call::from([Item::new("per_user", "u1"), Item::new("per_org", "o7").count(2)]).reserve();
/// ```
#[derive(Clone, Debug, PartialEq)]
#[must_use]
pub struct Call {
    pub(crate) items: Vec<Item>,
    pub(crate) reserve: bool,
}

impl Call {
    /// Take the tokens even if they are not there yet, as far as each limit's `max_reserved` allows, and say how long
    /// to wait for them. A sliding window cannot.
    pub const fn reserve(mut self) -> Self {
        self.reserve = true;
        self
    }
}

impl From<Item> for Call {
    fn from(item: Item) -> Self {
        Self { items: vec![item], reserve: false }
    }
}

impl From<Vec<Item>> for Call {
    fn from(items: Vec<Item>) -> Self {
        Self { items, reserve: false }
    }
}

impl From<&[Item]> for Call {
    fn from(items: &[Item]) -> Self {
        Self { items: items.to_vec(), reserve: false }
    }
}

impl<const N: usize> From<[Item; N]> for Call {
    fn from(items: [Item; N]) -> Self {
        Self { items: items.into(), reserve: false }
    }
}

impl<L: Into<LimitRef>, K: Into<Key>> From<(L, K)> for Call {
    fn from(item: (L, K)) -> Self {
        Item::from(item).into()
    }
}

impl<L: Into<LimitRef>, K: Into<Key>, C: Into<f64>> From<(L, K, C)> for Call {
    fn from(item: (L, K, C)) -> Self {
        Item::from(item).into()
    }
}
