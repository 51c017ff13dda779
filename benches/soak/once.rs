//! Requests with idempotency keys. Each is delivered several times, concurrently and again later, and takes one token.

use std::sync::Arc;
use std::time::{Duration, Instant};

use fastrand::Rng;
use pg_limiter::{Call, Decision, Error};
use tokio::task::JoinSet;

use super::call::{End, impatient, in_transaction};
use super::round::{Books, audited};
use super::setup::{KEEP, SoakSetup};
use super::stats::{Stats, Taken};

const WHAT: &str = "once";
/// The number of concurrent requests.
const AT_ONCE: usize = 8;

pub(super) async fn once(setup: Arc<SoakSetup>, stats: Arc<Stats>, mut dice: Rng) {
    let capacity = setup.of(WHAT).map_or(0.0, pg_limiter::Limit::capacity);
    let requests = (capacity * 1.2) as u64;
    for round in 1_u64.. {
        let key = format!("{WHAT} {round}");
        let mut books = Books::default();
        let mut tasks = JoinSet::new();
        let mut made = 0;
        loop {
            while made < requests && tasks.len() < AT_ONCE && !stats.is_stopped() {
                made += 1;
                let request = Request {
                    setup: Arc::clone(&setup),
                    stats: Arc::clone(&stats),
                    key: key.clone(),
                    idempotency_key: format!("{} {round} {made}", setup.name()),
                };
                tasks.spawn(request.deliver(dice.fork()));
            }
            match tasks.join_next().await {
                Some(Ok(Taken::Yes)) => books.admitted += 1.0,
                Some(Ok(Taken::Perhaps)) => books.perhaps += 1.0,
                Some(Ok(Taken::No)) => {}
                Some(Err(error)) => stats.violated(format!("{key}: a caller panicked: {error}")),
                None => break,
            }
        }
        let items = [setup.item(WHAT, &key)];
        let wrong = |spent: &[f64]| books.wrong(spent.first().copied().unwrap_or_default(), capacity);
        match audited(&setup, &items, &[capacity], wrong).await {
            Ok(None) => stats.audited(),
            Ok(Some(wrong)) => stats.violated(format!("{key}: {wrong}")),
            Err(error) => stats.violated(format!("{key}: the balance could not be read: {error}")),
        }
        if let Err(error) = setup.audit().reset(items).await {
            stats.violated(format!("{key}: the rows could not be removed: {error}"));
        }
        if !stats.pause(Duration::from_millis(dice.usize(..100) as u64)).await {
            return;
        }
    }
}

struct Request {
    setup: Arc<SoakSetup>,
    stats: Arc<Stats>,
    key: String,
    idempotency_key: String,
}

/// The result of one delivery. A delivery that is rolled back is `Nothing`.
enum Delivered {
    Answered(Decision),
    Unknown,
    Nothing,
}

impl Request {
    fn call(&self) -> Call {
        Call::from(self.setup.item(WHAT, &self.key)).idempotency_key(self.idempotency_key.as_str())
    }

    async fn deliver(self, mut dice: Rng) -> Taken {
        let request = Arc::new(self);
        let began = Instant::now();
        let mut tasks = JoinSet::new();
        for _ in 0..1 + dice.usize(..3) {
            tasks.spawn(Arc::clone(&request).once(dice.fork()));
        }
        let (mut answers, mut is_unknown) = (Vec::new(), false);
        while let Some(delivered) = tasks.join_next().await {
            match delivered {
                Ok(Delivered::Answered(decision)) => answers.push(decision),
                Ok(Delivered::Unknown) => is_unknown = true,
                Ok(Delivered::Nothing) => {}
                Err(error) => {
                    request.stats.violated(format!("{}: a caller panicked: {error}", request.idempotency_key))
                }
            }
        }
        if answers.iter().any(Decision::is_allowed) {
            // The request was admitted, so every later delivery must be admitted, too.
            if let Ok(again) = request.answer(request.setup.any_limiter(&mut dice).limit(request.call()).await) {
                answers.push(again);
            }
            if began.elapsed() + Duration::from_secs(1) >= KEEP {
                return Taken::Perhaps; // The stored answer may have expired, so a second token may have been taken.
            }
            request.compare(&answers);
            return Taken::Yes;
        }
        if is_unknown { Taken::Perhaps } else { Taken::No }
    }

    fn answer(&self, answer: Result<Decision, Error>) -> Result<Decision, Taken> {
        let taken = self.stats.taken(&answer);
        answer.map_err(|_| taken)
    }

    async fn once(self: Arc<Self>, mut dice: Rng) -> Delivered {
        let (setup, stats) = (&*self.setup, &*self.stats);
        let answer = match dice.usize(..10) {
            0 => {
                let taken =
                    impatient(stats, dice.usize(..10_000), setup.any_limiter(&mut dice).limit(self.call())).await;
                return if taken == Taken::No { Delivered::Nothing } else { Delivered::Unknown };
            }
            1 => in_transaction(setup, &mut dice, self.call(), End::Commit, "").await,
            2 => {
                // The request may have been admitted by another delivery. This one takes nothing in either case.
                let _ = self.answer(in_transaction(setup, &mut dice, self.call(), End::Rollback, "").await);
                return Delivered::Nothing;
            }
            _ => setup.any_limiter(&mut dice).limit(self.call()).await,
        };
        match self.answer(answer) {
            Ok(decision) => Delivered::Answered(decision),
            Err(Taken::Perhaps) => Delivered::Unknown,
            Err(_) => Delivered::Nothing,
        }
    }

    /// Checks that all admitted deliveries got the same answer.
    fn compare(&self, answers: &[Decision]) {
        let Some(first) = answers.iter().find(|answer| answer.is_allowed()) else { return };
        let differs = |answer: &&Decision| answer.is_allowed() && answer.remaining() != first.remaining();
        if let Some(other) = answers.iter().find(differs) {
            let (one, other, key) = (first.remaining(), other.remaining(), &self.idempotency_key);
            self.stats.violated(format!("{key}: one delivery returned {one} tokens left, another one {other}"));
        }
        if answers.last().is_some_and(Decision::is_denied) {
            self.stats.violated(format!("{}: denied after an earlier delivery was admitted", self.idempotency_key));
        }
    }
}
