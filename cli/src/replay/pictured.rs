//! The picture of a replay: a panel for each limit.

use std::collections::HashSet;
use std::sync::Arc;

use crate::error::CliError;
use crate::output;
use crate::plot::{Became, Bins, Panel, PlotArgs};
use crate::replay::recording::Recording;
use crate::replay::sandbox::{Purpose, Timed};
use crate::text::grouped;
use pg_limiter::{Call, Decision, InvalidCall, Item, Limits, Op};

/// The most panels in a picture.
const MOST_PANELS: usize = 20;

pub(super) struct Pictured {
    panels: Vec<Panel>,
    only_key: Option<Arc<str>>,
    /// For each panel, the key of the balance that is drawn, if the panel shows one bucket.
    keys: Vec<Option<Arc<str>>>,
}

impl Pictured {
    pub(super) fn new(
        recording: &Recording,
        limits: &Limits,
        args: &PlotArgs,
        only_key: Option<&str>,
    ) -> Result<Self, CliError> {
        let summary = &recording.summary;
        let bins = match summary.span {
            Some((first, last)) => args.bins(first, last, summary.resolution)?,
            None => Bins::default(),
        };
        let mut buckets = recording.buckets();
        if buckets.is_empty() {
            // No calls: draw an empty panel for every limit.
            buckets.extend(limits.iter().map(|(name, _)| (name.into(), HashSet::new())));
        }
        buckets.retain(|(name, keys)| limits.get(name).is_some() && only_key.is_none_or(|key| keys.contains(key)));
        if only_key.is_some() && buckets.is_empty() {
            return Err(CliError::usage("no recorded call has the key of --only-key"));
        }
        if buckets.len() > MOST_PANELS {
            output::note(format_args!(
                "the calls use {} limits: only the first {MOST_PANELS} are drawn",
                buckets.len()
            ));
            buckets.truncate(MOST_PANELS);
        }
        let mut pictured = Self { panels: Vec::new(), only_key: only_key.map(Into::into), keys: Vec::new() };
        for (name, keys) in buckets {
            let Some(limit) = limits.get(&name) else { continue };
            let key = match (&pictured.only_key, keys.len()) {
                (Some(key), _) => Some(Arc::clone(key)),
                (None, 1) => keys.iter().next().cloned(),
                (None, _) => None,
            };
            let about = match keys.len() {
                0 | 1 => String::new(),
                _ if only_key.is_some() => String::new(),
                all => format!("{} keys together", grouped(all as u64)),
            };
            pictured.panels.push(Panel::new(&name, *limit, about, bins, key.is_some()));
            pictured.keys.push(key);
        }
        Ok(pictured)
    }

    /// The questions for the balances to draw, in the order of time. The tag is the index of the panel.
    pub(super) fn questions(&self, pass: usize, passes: usize) -> Vec<Timed<Purpose>> {
        let mut questions = Vec::new();
        for (place, (panel, key)) in self.panels.iter().zip(&self.keys).enumerate() {
            // Each limit of an access log has its own pass.
            if passes > 1 && place != pass {
                continue;
            }
            if let Some(key) = key {
                let call = || Call::from(Item::new(&*panel.name, &**key).count(0));
                let question = |at| Timed { at, op: Op::Check, call: call(), tag: Purpose::Balance(place) };
                questions.extend(panel.moments().map(question));
            }
        }
        questions.sort_by_key(|question| question.at);
        questions
    }

    /// Records the answer to one of the questions.
    pub(super) fn answered(&mut self, panel: usize, at: i64, answer: &Result<Decision, InvalidCall>) {
        if let Ok(decision) = answer {
            self.panels[panel].series.balance(at, decision.remaining());
        }
    }

    pub(super) fn add<T>(&mut self, timed: &Timed<T>, decision: &Result<Decision, InvalidCall>) {
        let (Ok(decision), Op::Limit) = (decision, timed.op) else { return };
        for (item, state) in timed.call.items().iter().zip(decision.limits()) {
            if self.only_key.as_ref().is_some_and(|key| **key != *item.key().as_str()) {
                continue;
            }
            if let Some(panel) = self.panels.iter_mut().find(|panel| panel.name == state.limit) {
                panel.add(timed.at, item.tokens(), Became::of(decision, state.denied), state.remaining);
            }
        }
    }

    pub(super) fn into_panels(self) -> Vec<Panel> {
        self.panels
    }
}
