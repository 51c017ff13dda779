//! Waiting for a permit: by a reservation where the kind has them, in line where it has not.

use std::time::{Duration, Instant};

use crate::call::{Call, Decision, Op, Outcome, Resolved, ResolvedItem};
use crate::error::{Error, InvalidCall};
use crate::limit::Kind;
use crate::limiter::{Limiter, WaitConfig};
use crate::observability::Seen;
use crate::retry::{longest, part_of, share};

impl Limiter {
    /// Waits until the call may go ahead, and takes its tokens: allowed, or denied if that would be after
    /// [`max_wait`](WaitConfig::max_wait). An allowed call has waited, and goes ahead at once. A denial takes nothing, and
    /// comes as soon as it is known, not at the end of the wait.
    ///
    /// ```no_run
    /// # use std::time::Duration;
    /// # use pg_limiter::{Error, Limiter, WaitConfig};
    /// # async fn f(limiter: Limiter) -> Result<(), Error> {
    /// // For 2 seconds at most; or WaitConfig::default(), for 30.
    /// limiter.until_ready(("mails", "u1"), Duration::from_secs(2)).await?.enforce()?;
    /// # Ok(()) }
    /// ```
    ///
    /// # How it waits
    /// - **Token buckets and fixed windows** are asked once. The tokens are reserved if they arrive in time, and the call
    ///   sleeps until they are there: nobody asks again and again, and the database says who is first. (As the `reserve` and
    ///   `wait` of Symfony's RateLimiter.) Nothing is owed beyond what arrives within the time, nor beyond the limit's own
    ///   `max_reserved`.
    /// - **What cannot be reserved**, in sliding windows, beyond `max_reserved`, or where less than a fixed window's period is
    ///   left, is asked for again at the moment that the database has told, later by a [`jitter`](WaitConfig::jitter). Those
    ///   who wait for the same buckets on one handle and its clones stand in line, and only the first of them asks; the
    ///   jitter is for those of different processes. (As governor's `until_ready_with_jitter`.)
    /// - **Several limits** wait for the last of them, and all are charged or none. With a sliding window among them, none is
    ///   reserved.
    ///
    /// Reservations are served in the order in which they were decided, over all processes; a line in the order of coming,
    /// but between processes, and between different sets of limits, whoever asks first is first. In a limit's bucket, those
    /// who wait and those who call [`limit`](Self::limit) meet: as tokens are owed, the latter are denied.
    ///
    /// # Answers
    /// After a wait, too, the decision is [`Outcome::Allowed`], with the balances as of the moment at which the tokens were
    /// taken. The `retry_after` of a denial is when the tokens would be there: later than `max_wait`, unless others were
    /// quicker.
    ///
    /// # Errors
    /// See [`Limiter`]. Besides, [`InvalidCall::WaitTooShort`] if the count is above the capacity and the rest cannot arrive
    /// in the time (in a fixed window, whole periods count), and [`InvalidCall::IdempotencyKeyUnsupported`]: the moment that a
    /// repeated call would be given may be long past, or beyond its time. An error is never a permit. The deadline of the
    /// [`RetryPolicy`](crate::RetryPolicy) is for each question to the database.
    ///
    /// # Cancel safety
    /// Dropping the future is safe. As with a reservation that nobody comes for, **what was reserved stays spent**: others have
    /// been given moments behind it, and if those tokens came back, somebody else would be given one of theirs. In a line,
    /// nothing was taken, and the others move up.
    ///
    /// # In a transaction
    /// There is no such call within a caller's transaction: it would hold its locks, and a connection, while it sleeps. There,
    /// [`reserve`](crate::Call::reserve) tells how long to wait after the commit.
    pub async fn until_ready(
        &self,
        call: impl Into<Call> + Send,
        wait: impl Into<WaitConfig> + Send,
    ) -> Result<Decision, Error> {
        let (call, wait) = (call.into(), wait.into());
        let seen = Seen::own("until_ready", &call);
        seen.watch(self.wait_for(call, wait, &seen)).await
    }

    async fn wait_for(&self, call: Call, config: WaitConfig, seen: &Seen) -> Result<Decision, Error> {
        let max_wait = longest(config.max_wait);
        let deadline = Instant::now() + max_wait;
        let waiter = Waiter::new(self, call, config)?;
        waiter.check_possible(max_wait)?;
        let mut place = if waiter.may_meet_a_line() { self.lines.join_if_any(&waiter.call) } else { None };
        let mut is_last = false;
        // The same for all that begin to wait, so that the database sees one limit and not many.
        let mut left = max_wait;
        if let Some(place) = &mut place {
            is_last = !place.until_first(deadline).await;
            left = until(deadline);
        }
        let mut attempts = 0;
        loop {
            attempts += 1;
            seen.attempts(attempts);
            if waiter.check_possible(left).is_err() {
                return waiter.ask_when(left).await; // Less would arrive now than when it began to wait.
            }
            let again = match waiter.ask(left).await? {
                Asked::Ready { decision, wait } => {
                    drop(place); // Who has reserved keeps nobody from asking.
                    sleep(wait + waiter.jitter_of_reserved(wait, until(deadline))).await;
                    return Ok(decision);
                }
                Asked::Denied(decision) => return Ok(decision),
                Asked::Again(again) => again,
            };
            let Some(room) = until(deadline).checked_sub(again.after.saturating_add(again.reserved)) else {
                return Ok(again.denied());
            };
            if is_last {
                return Ok(again.denied());
            }
            let place = place.get_or_insert_with(|| self.lines.join(&waiter.call));
            if place.is_first() {
                let pause = again.after + waiter.jitter(again.after, room);
                place.sleeps_until(Instant::now() + pause);
                sleep(pause).await;
            } else {
                is_last = !place.until_first(deadline).await;
            }
            left = until(deadline);
        }
    }
}

/// One that waits, and what it waits for.
struct Waiter<'l> {
    limiter: &'l Limiter,
    call: Resolved,
    config: WaitConfig,
}

/// What an attempt came to.
enum Asked {
    /// The tokens are taken, and there after this time.
    Ready { decision: Decision, wait: Duration },
    /// Not in time.
    Denied(Decision),
    /// Perhaps in time.
    Again(Again),
}

/// A denial that may not be the last word.
struct Again {
    decision: Decision,
    /// When it was told.
    told: Instant,
    /// From then on, before that it is no use to ask.
    after: Duration,
    /// What would still have to be waited then, at least.
    reserved: Duration,
    /// When the tokens are there.
    ready: Duration,
}

impl Again {
    fn denied(self) -> Decision {
        denied(self.decision, self.ready.saturating_sub(self.told.elapsed()))
    }
}

fn denied(decision: Decision, retry_after: Duration) -> Decision {
    Decision { outcome: Outcome::Denied { retry_after }, ..decision }
}

impl<'l> Waiter<'l> {
    fn new(limiter: &'l Limiter, call: Call, config: WaitConfig) -> Result<Self, Error> {
        if call.idempotency_key.is_some() {
            return Err(InvalidCall::IdempotencyKeyUnsupported.into());
        }
        let limits = limiter.rate_limits();
        let call = match limits.resolve(Op::Limit, call.clone().reserve()) {
            Err(Error::Invalid(InvalidCall::ReserveUnsupported { .. })) => limits.resolve(Op::Limit, call),
            resolved => resolved,
        };
        Ok(Self { limiter, call: call?, config })
    }

    /// The call as it is made with so much time left: what is reserved is there by then.
    fn within(&self, left: Duration) -> Resolved {
        let mut call = self.call.clone();
        if call.reserve {
            for item in &mut call.items {
                item.limit = item.limit.owing_at_most(item.limit.arriving_within(left));
            }
        }
        call
    }

    /// Whether the tokens can be there by then, if all buckets are full.
    fn check_possible(&self, left: Duration) -> Result<(), InvalidCall> {
        let call = self.within(left);
        let checked = call.items.iter().try_for_each(|item| item.check_possible(call.reserve));
        checked.map_err(|error| match error {
            InvalidCall::CountExceedsCapacity { limit, count, most } if call.reserve => {
                InvalidCall::WaitTooShort { limit, count, most, max_wait: left }
            }
            other => other,
        })
    }

    /// Whether others may wait in line for what it could have at once: where there is less than all can reserve.
    fn may_meet_a_line(&self) -> bool {
        !self.call.reserve || self.call.items.iter().any(|item| item.limit.max_reserved().is_some())
    }

    /// A denial by the limits that cannot serve it by then, with the time at which the tokens would be there.
    async fn ask_when(&self, left: Duration) -> Result<Decision, Error> {
        let late = self.within(left);
        let call = Resolved { op: Op::Check, ..self.call.clone() };
        let (call, answer) = self.limiter.combiner.ask(call).await?;
        let mut decision = answer.decision(&call);
        for (place, state) in call.places.iter().zip(&mut decision.limits) {
            state.refused |= late.items[*place].check_possible(call.reserve).is_err();
        }
        let wait = decision.retry_after().unwrap_or_default();
        Ok(denied(decision, wait))
    }

    async fn ask(&self, left: Duration) -> Result<Asked, Error> {
        let (call, answer) = self.limiter.combiner.ask(self.within(left)).await?;
        let decision = answer.decision(&call);
        let after = match decision.outcome {
            Outcome::Allowed => return Ok(Asked::Ready { decision, wait: Duration::ZERO }),
            Outcome::Reserved { wait } => {
                return Ok(Asked::Ready { decision: Decision { outcome: Outcome::Allowed, ..decision }, wait });
            }
            Outcome::Denied { retry_after } => retry_after,
        };
        // What was told is when the debt would be within its bound; the tokens are there when that is paid, too.
        let (mut reserved, mut longest, mut in_time) = (None::<Duration>, Duration::ZERO, true);
        for (place, _) in call.places.iter().zip(&decision.limits).filter(|(_, state)| state.refused) {
            let (own, limit) = (&self.call.items[*place].limit, &call.items[*place].limit);
            let Some(owed) = limit.max_reserved().filter(|_| call.reserve) else { continue };
            let (least, most) = limit.time_to_arrive(owed);
            reserved = Some(reserved.map_or(least, |other| other.min(least)));
            longest = longest.max(most);
            // Its bound is the time itself, to the microsecond: there is more than that to wait, now and later.
            in_time &= limit.kind() != Kind::TokenBucket || own.max_reserved().is_some_and(|own| own <= owed);
        }
        let ready = after.saturating_add(longest);
        if !in_time {
            return Ok(Asked::Denied(denied(decision, ready)));
        }
        Ok(Asked::Again(Again { decision, told: Instant::now(), after, reserved: reserved.unwrap_or_default(), ready }))
    }

    /// How much later than it could the first of a line asks again.
    fn jitter(&self, wait: Duration, room: Duration) -> Duration {
        self.spread(self.call.items.iter(), wait, room)
    }

    /// How much later than it could one begins that has reserved: those of a fixed window all could when it opens.
    fn jitter_of_reserved(&self, wait: Duration, left: Duration) -> Duration {
        let windows = self.call.items.iter().filter(|item| item.limit.kind() == Kind::FixedWindow);
        self.spread(windows, wait, left.saturating_sub(wait))
    }

    fn spread<'a>(&self, items: impl Iterator<Item = &'a ResolvedItem>, wait: Duration, room: Duration) -> Duration {
        let arrivals = items.map(|item| item.limit.time_to_arrive(item.count).1);
        let span = arrivals.max().unwrap_or_default().min(wait).mul_f64(share(self.config.jitter));
        part_of(span.min(room))
    }
}

fn until(deadline: Instant) -> Duration {
    deadline.saturating_duration_since(Instant::now())
}

/// Never for less: the timer's steps are rounded up.
async fn sleep(time: Duration) {
    if !time.is_zero() {
        tokio::time::sleep(time).await;
    }
}
