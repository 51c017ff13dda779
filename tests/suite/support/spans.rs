use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard};

use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Level, Metadata, Subscriber};
use tracing_core::span::Current;

/// Keeps the spans of this crate. Requires a runtime of one thread.
#[derive(Clone, Default)]
pub struct Spans(Arc<Mutex<Recorded>>);

#[derive(Default)]
struct Recorded {
    all: Vec<Shown>,
    entered: Vec<Id>,
}

/// A span with the final values of its fields.
#[derive(Clone, Debug)]
pub struct Shown {
    pub metadata: &'static Metadata<'static>,
    pub fields: BTreeMap<&'static str, Value>,
    /// The index of its parent.
    pub parent: Option<usize>,
    /// The indexes of the spans that it follows from.
    pub follows: Vec<usize>,
}

#[derive(Clone, Debug, PartialEq)]
pub enum Value {
    Text(String),
    Number(f64),
}

impl Shown {
    pub fn text(&self, field: &str) -> &str {
        match self.fields.get(field) {
            Some(Value::Text(text)) => text,
            _ => "",
        }
    }

    pub fn number(&self, field: &str) -> f64 {
        match self.fields.get(field) {
            Some(Value::Number(number)) => *number,
            _ => f64::NAN,
        }
    }
}

impl Visit for Shown {
    fn record_debug(&mut self, field: &Field, value: &dyn std::fmt::Debug) {
        self.fields.insert(field.name(), Value::Text(format!("{value:?}")));
    }
    fn record_str(&mut self, field: &Field, value: &str) {
        self.fields.insert(field.name(), Value::Text(value.to_owned()));
    }
    fn record_f64(&mut self, field: &Field, value: f64) {
        self.fields.insert(field.name(), Value::Number(value));
    }
    fn record_i64(&mut self, field: &Field, value: i64) {
        self.record_f64(field, value as f64);
    }
    fn record_u64(&mut self, field: &Field, value: u64) {
        self.record_f64(field, value as f64);
    }
}

fn place(id: &Id) -> usize {
    usize::try_from(id.into_u64() - 1).expect("a place")
}

impl Spans {
    fn state(&self) -> MutexGuard<'_, Recorded> {
        self.0.lock().expect("the spans")
    }

    /// All spans, in the order in which they began.
    pub fn shown(&self) -> Vec<Shown> {
        self.state().all.clone()
    }

    /// The spans with this name.
    pub fn named(&self, name: &str) -> Vec<Shown> {
        self.shown().into_iter().filter(|span| span.metadata.name() == name).collect()
    }
}

impl Subscriber for Spans {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.target() == "pg_limiter" && *metadata.level() <= Level::DEBUG
    }

    fn new_span(&self, span: &Attributes<'_>) -> Id {
        let mut state = self.state();
        let parent = match (span.parent(), span.is_contextual()) {
            (Some(parent), _) => Some(place(parent)),
            (None, true) => state.entered.last().map(place),
            (None, false) => None,
        };
        let mut shown = Shown { metadata: span.metadata(), fields: BTreeMap::new(), parent, follows: Vec::new() };
        span.record(&mut shown);
        state.all.push(shown);
        Id::from_u64(state.all.len() as u64)
    }

    fn record(&self, id: &Id, values: &Record<'_>) {
        values.record(&mut self.state().all[place(id)]);
    }

    fn record_follows_from(&self, id: &Id, follows: &Id) {
        self.state().all[place(id)].follows.push(place(follows));
    }

    fn event(&self, _: &Event<'_>) {}

    fn enter(&self, id: &Id) {
        self.state().entered.push(id.clone());
    }

    fn exit(&self, id: &Id) {
        let mut state = self.state();
        if let Some(last) = state.entered.iter().rposition(|entered| entered == id) {
            state.entered.remove(last);
        }
    }

    fn current_span(&self) -> Current {
        let state = self.state();
        match state.entered.last() {
            Some(id) => Current::new(id.clone(), state.all[place(id)].metadata),
            None => Current::none(),
        }
    }
}
