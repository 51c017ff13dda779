use std::sync::{Arc, LazyLock, Mutex};

use tracing::subscriber::{DefaultGuard, NoSubscriber};

/// Sends what this thread traces to this subscriber, until the guard is dropped.
///
/// It also creates a second dispatcher. With a single one, `tracing` asks only the first thread that reaches a callsite
/// whether it is enabled, and caches the answer. That thread may belong to another test.
#[must_use]
pub fn watch(subscriber: impl tracing::Subscriber + Send + Sync + 'static) -> DefaultGuard {
    static SECOND: LazyLock<tracing::Dispatch> = LazyLock::new(|| tracing::Dispatch::new(NoSubscriber::new()));
    LazyLock::force(&SECOND);
    tracing::subscriber::set_default(subscriber)
}

/// Keeps the fields of all events and spans of a target.
#[derive(Clone)]
pub struct Events {
    target: &'static str,
    fields: Arc<Mutex<Vec<String>>>,
}

impl Default for Events {
    fn default() -> Self {
        Self::of("pg_limiter")
    }
}

impl tracing::field::Visit for Events {
    fn record_debug(&mut self, field: &tracing::field::Field, value: &dyn std::fmt::Debug) {
        self.fields.lock().expect("the events").push(format!("{field}={value:?}"));
    }
}

impl tracing::Subscriber for Events {
    fn enabled(&self, metadata: &tracing::Metadata<'_>) -> bool {
        metadata.target().starts_with(self.target)
    }
    fn new_span(&self, span: &tracing::span::Attributes<'_>) -> tracing::span::Id {
        span.record(&mut self.clone());
        tracing::span::Id::from_u64(1)
    }
    fn record(&self, _: &tracing::span::Id, values: &tracing::span::Record<'_>) {
        values.record(&mut self.clone());
    }
    fn record_follows_from(&self, _: &tracing::span::Id, _: &tracing::span::Id) {}
    fn event(&self, event: &tracing::Event<'_>) {
        event.record(&mut self.clone());
    }
    fn enter(&self, _: &tracing::span::Id) {}
    fn exit(&self, _: &tracing::span::Id) {}
}

impl Events {
    pub fn of(target: &'static str) -> Self {
        Self { target, fields: Arc::default() }
    }

    /// All fields as one text.
    pub fn told(&self) -> String {
        self.fields.lock().expect("the events").join(" ")
    }

    pub fn clear(&self) {
        self.fields.lock().expect("the events").clear();
    }
}
