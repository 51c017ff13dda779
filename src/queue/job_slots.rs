//! The slots that a claimed job holds, of the concurrency limits among its limits.

use std::time::{Duration, Instant};

use tracing::warn;

use crate::call::{Call, Item};
use crate::limiter::Lease;
use crate::queue::Queue;
use crate::sql::queue::ClaimedJob;

/// How long a worker waits for a release. After that, it goes on, and the slots are released in the background.
const TO_RELEASE: Duration = Duration::from_secs(1);

impl Queue {
    /// Returns the lease of the job's slots, which is renewed until it is dropped; `None` if the job has no slots. The job was
    /// claimed at `asked` or later.
    pub(super) fn slots_of(&self, job: &ClaimedJob, asked: Instant) -> Option<Lease> {
        let id = job.slot_lease.filter(|_| !job.slots.is_empty())?;
        let items = job.slots.iter().map(|slot| Item::new(&slot.name, &slot.key).count(slot.count));
        let call = Call { has_stored_keys: true, ..Call::from(items.collect::<Vec<_>>()) };
        match Lease::held(self.limiter(), call, id, asked) {
            Ok(lease) => Some(lease.keep_renewed()),
            Err(error) => {
                warn!(queue = self.name(), job = job.id, %error, "cannot renew the slots of a job; they are free when their lease ends");
                None
            }
        }
    }
}

/// Releases the slots of a job that has ended.
pub(super) async fn release(lease: Lease) {
    match tokio::time::timeout(TO_RELEASE, lease.release()).await {
        Ok(Ok(_)) | Err(_) => {}
        Ok(Err(error)) => warn!(%error, "cannot release the slots of a job; trying again in the background"),
    }
}
