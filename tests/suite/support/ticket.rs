use pg_limiter::queue::{EnqueueOutcome, Enqueued, Ticket};

pub fn scheduled(enqueued: &Enqueued) -> Ticket {
    match enqueued.outcome() {
        EnqueueOutcome::Scheduled(ticket) => ticket,
        other => panic!("{other:?}"),
    }
}
