use std::collections::HashMap;

use crate::replay::Event;
use pg_limiter::{Call, Item, Kind, LeaseId, Limits, Op};

/// The calls that took leases, by the names that the file gives to them.
pub(super) struct Leases<'l> {
    limits: &'l Limits,
    named: HashMap<String, Call>,
}

impl<'l> Leases<'l> {
    pub(super) fn new(limits: &'l Limits) -> Self {
        Self { limits, named: HashMap::new() }
    }

    /// Gives a call on a concurrency limit a lease, and a release or a renewal the call that it is for: the last one before it
    /// with that lease. Events must be in the order of time. `place`: that of the event's line.
    pub(super) fn name(&mut self, event: &mut Event, place: usize) -> Result<(), String> {
        if matches!(event.op, Op::Release | Op::Renew) {
            let name = event.lease.as_deref().unwrap_or_default();
            let call = self.named.get(name).ok_or_else(|| format!("no earlier call has the lease \"{name}\""))?;
            event.call = call.clone();
            return Ok(());
        }
        let has_slots =
            |item: &Item| self.limits.get(item.limit_name()).is_some_and(|limit| limit.kind() == Kind::Concurrency);
        if event.op == Op::Limit && (event.lease.is_some() || event.call.items().iter().any(has_slots)) {
            let id = i64::try_from(place).ok().and_then(|place| LeaseId::new(place + 2));
            event.call = event.call.clone().lease(id.unwrap_or_else(LeaseId::random));
            if let Some(name) = event.lease.clone() {
                self.named.insert(name, event.call.clone());
            }
        }
        Ok(())
    }
}
