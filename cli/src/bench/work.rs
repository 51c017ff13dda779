use std::sync::Arc;

use fastrand::Rng;
use serde::Serialize;

use crate::text::grouped;
use pg_limiter::Item;

const MANY: usize = 10_000;

/// The calls of one measurement.
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

/// The limit and the keys of the calls.
pub(super) struct Target {
    limit: Arc<str>,
    keys: Vec<Arc<str>>,
}

impl Target {
    /// Each kind of work has its own keys.
    pub(super) fn new(limit: &str, work: Work) -> Self {
        let keys = (0..work.keys()).map(|nth| format!("{work:?} {nth}").into()).collect();
        Self { limit: limit.into(), keys }
    }

    /// Returns each key once.
    pub(super) fn each(&self) -> impl Iterator<Item = Item> {
        self.keys.iter().map(|key| self.item(key))
    }

    /// Returns a random key. All keys are equally likely.
    pub(super) fn any(&self, dice: &mut Rng) -> Item {
        self.item(&self.keys[dice.usize(..self.keys.len())])
    }

    fn item(&self, key: &Arc<str>) -> Item {
        Item::new(Arc::clone(&self.limit), Arc::clone(key))
    }
}
