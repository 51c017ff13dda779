use std::sync::Arc;

use serde::Serialize;

use crate::text::grouped;
use pg_limiter::Item;

const MANY: usize = 10_000;

/// What the callers of one measurement do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum Work {
    LoneCaller,
    OneKey,
    ManyKeys,
    AllDenied,
}

impl Work {
    pub(super) const ALL: [Self; 4] = [Self::LoneCaller, Self::OneKey, Self::ManyKeys, Self::AllDenied];

    pub(super) const fn callers(self, callers: u32) -> u32 {
        if matches!(self, Self::LoneCaller) { 1 } else { callers }
    }

    pub(super) const fn keys(self) -> usize {
        if matches!(self, Self::ManyKeys) { MANY } else { 1 }
    }

    pub(super) fn title(self, callers: u32) -> String {
        let callers = if callers == 1 { "1 caller".to_owned() } else { format!("{} callers", grouped(callers.into())) };
        match self {
            Self::LoneCaller => "a lone caller".to_owned(),
            Self::OneKey => format!("{callers}, one key"),
            Self::ManyKeys => format!("{callers}, {} keys", grouped(MANY as u64)),
            Self::AllDenied => format!("{callers}, all denied"),
        }
    }
}

/// The keys that are asked for.
pub(super) struct Target {
    limit: Arc<str>,
    keys: Vec<Arc<str>>,
}

impl Target {
    /// Each kind of work has keys of its own.
    pub(super) fn new(limit: &str, work: Work) -> Self {
        let keys = (0..work.keys()).map(|nth| format!("{work:?} {nth}").into()).collect();
        Self { limit: limit.into(), keys }
    }

    /// Each key once.
    pub(super) fn each(&self) -> impl Iterator<Item = Item> {
        self.keys.iter().map(|key| self.item(key))
    }

    /// Any of the keys, each as likely as the others.
    pub(super) fn any(&self, dice: &mut Dice) -> Item {
        self.item(&self.keys[dice.roll(self.keys.len())])
    }

    fn item(&self, key: &Arc<str>) -> Item {
        Item::new(Arc::clone(&self.limit), Arc::clone(key))
    }
}

/// Good enough to choose keys, and quick (xorshift).
pub(super) struct Dice(u64);

impl Dice {
    pub(super) const fn new(seed: u64) -> Self {
        Self(seed | 1) // It would never leave 0.
    }

    pub(super) fn roll(&mut self, sides: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        ((u128::from(self.0) * sides as u128) >> 64) as usize
    }

    /// Others, for another task.
    pub(super) fn another(&mut self) -> Self {
        // Numbers in a row of this generator are far apart; those of two that begin alike are not.
        Self::new((self.roll(usize::MAX) as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15))
    }
}
