//! Limits in shadow mode beside limits that are enforced.

use std::collections::BTreeMap;
use std::sync::Arc;

use tokio::task::JoinHandle;

use crate::call::Item;
use crate::limiter::Lease;
use crate::web::layer::Rules;
use crate::web::log;

/// The decisions on a request's limits in shadow mode. They run in the background, so that they delay no request. Dropping it
/// releases the slots that they took.
pub(in crate::web) struct Trial(JoinHandle<Taken>);

struct Taken {
    items: Vec<Item>,
    /// Held until the response has been sent.
    _leases: Vec<Lease>,
}

impl Trial {
    /// Decides each limit alone, as if it were enforced.
    pub(in crate::web) fn start(rules: &Arc<Rules>, items: Vec<Item>) -> Option<Self> {
        if items.is_empty() {
            return None;
        }
        let rules = Arc::clone(rules);
        Some(Self(tokio::spawn(async move { take_each_limit(&rules, items).await })))
    }

    /// Waits for the decisions, releases the slots, and returns the items of which tokens were taken.
    pub(super) async fn taken(self) -> Vec<Item> {
        // The task ends without a result only if the runtime shuts down.
        self.0.await.map(|taken| taken.items).unwrap_or_default()
    }
}

async fn take_each_limit(rules: &Rules, items: Vec<Item>) -> Taken {
    let mut by_name: BTreeMap<Arc<str>, Vec<Item>> = BTreeMap::new();
    for item in items {
        by_name.entry(Arc::clone(&item.limit.name)).or_default().push(item);
    }
    let (mut taken, mut is_denied) = (Taken { items: Vec::new(), _leases: Vec::new() }, false);
    for (name, items) in by_name {
        match rules.take(items.clone()).await {
            Ok((decision, lease)) => {
                rules.note_tried(&name, &decision);
                is_denied |= decision.is_denied();
                taken._leases.extend(lease);
                if !decision.is_denied() {
                    taken.items.extend(items);
                }
            }
            Err(error) => log::let_through(&error, "shadow mode"),
        }
    }
    if is_denied {
        rules.count_shadow_denial();
    }
    taken
}
