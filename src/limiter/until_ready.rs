//! Waiting for a permit: by a reservation if the kind supports it, in a line if not.

use std::time::{Duration, Instant};

use crate::call::{Call, Decision, Op, Outcome, Resolved, ResolvedItem};
use crate::clock::LocalClock;
use crate::error::{Error, InvalidCall};
use crate::limit::Kind;
use crate::limiter::{Limiter, WaitConfig};
use crate::observability::CallSpan;
use crate::retry::{clamped_fraction, longest, part_of};

impl Limiter {
    /// Waits until the call is allowed, and takes its tokens. The call is denied if that would take longer than
    /// [`max_wait`](WaitConfig::max_wait).
    ///
    /// When it returns an allowed decision, the wait is over and the caller can go ahead at once. A denial takes
    /// nothing, except after a block during the wait (see below). It is returned as soon as it is certain, not at the end of
    /// the wait.
    ///
    /// ```no_run
    /// # use std::time::Duration;
    /// # use pg_limiter::{Error, Limiter, WaitConfig};
    /// # async fn f(limiter: Limiter) -> Result<(), Error> {
    /// // Waits for up to 2 seconds; WaitConfig::default() waits for up to 30.
    /// limiter.until_ready(("mails", "u1"), Duration::from_secs(2)).await?.enforce()?;
    /// # Ok(()) }
    /// ```
    ///
    /// # How it waits
    /// - **Token buckets, fixed windows and calendar windows** ask the database once. It reserves the tokens if they arrive
    ///   in time, and the call sleeps until then. No waiter polls, and the database sets the order. (As `reserve` and `wait` of
    ///   Symfony's RateLimiter.) A call owes at most what arrives within its wait, and at most the limit's own
    ///   `max_reserved`.
    /// - **Calls that cannot reserve** are retried after the `retry_after` of their denial plus a
    ///   [`jitter`](WaitConfig::jitter). These are calls of sliding windows, calls with a [headroom](crate::Item::leave),
    ///   calls beyond `max_reserved`, and calls with less time left than the length of a fixed or calendar window. Waiters
    ///   for the same buckets and headrooms on one handle and its clones form a line, and only the first one asks the
    ///   database. The jitter is for waiters in different processes. (As governor's `until_ready_with_jitter`.)
    /// - **Several limits** wait for the slowest of them. All of them are charged or none. If one of them is a sliding
    ///   window or has a headroom, none of them reserves.
    ///
    /// A call that slept until its reserved tokens were available checks its [gates](crate::Limit::gate) again. If one has been
    /// blocked meanwhile, the call waits for the end of the block and takes new tokens, or is denied. The reserved tokens stay
    /// spent: otherwise all calls that slept would go ahead at the end of the block.
    ///
    /// Reservations are served in the order of the database's decisions, across all processes. A line is served in
    /// order of arrival. Lines in different processes, or for different sets of limits, have no common order: the first
    /// to ask is served first. Waiting calls and calls of [`limit`](Self::limit) share a limit's buckets: a bucket that
    /// owes tokens denies calls of `limit`.
    ///
    /// # Answers
    /// The decision after a wait is also [`Outcome::Allowed`], with the balances from the moment when the tokens were
    /// taken. The `retry_after` of a denial is the time until the tokens would be available. It is longer than
    /// `max_wait`, unless other callers took the tokens during the wait.
    ///
    /// # Errors
    /// See [`Limiter`]. In addition:
    /// - [`InvalidCall::WaitTooShort`] if the count exceeds the capacity and the rest cannot arrive within the wait. A
    ///   fixed or calendar window counts whole windows only.
    /// - [`InvalidCall::IdempotencyKeyUnsupported`] if the call has an idempotency key: the stored answer could name a
    ///   time that is long past, or that is later than the repeated call may wait.
    ///
    /// An error is never a permit. The deadline of the [`RetryPolicy`](crate::RetryPolicy) applies to each request to
    /// the database, not to the whole wait.
    ///
    /// # Cancel safety
    /// Dropping the future is safe. **Reserved tokens stay spent**, as with any unused reservation: later reservations
    /// were timed after this one, and returned tokens would let another call go ahead in their place. A call that waits
    /// in a line has taken nothing, and the others move up.
    ///
    /// # In a transaction
    /// There is no such call for the caller's transaction, which would keep its locks and its connection while it
    /// sleeps. There, use [`reserve`](crate::Call::reserve): it returns how long to wait after the commit.
    pub async fn until_ready(
        &self,
        call: impl Into<Call> + Send,
        wait: impl Into<WaitConfig> + Send,
    ) -> Result<Decision, Error> {
        let (call, wait) = (call.into(), wait.into());
        let span = CallSpan::own("until_ready", &call);
        span.watch(self.wait_for(call, wait, &span)).await
    }

    async fn wait_for(&self, call: Call, config: WaitConfig, span: &CallSpan) -> Result<Decision, Error> {
        let max_wait = longest(config.max_wait);
        let clock = self.clock();
        let deadline = clock.now() + max_wait;
        let until = |deadline: Instant| deadline.saturating_duration_since(clock.now());
        let waiter = Waiter::new(self, call, config)?;
        waiter.check_possible(max_wait)?;
        let mut place = if waiter.may_meet_a_line() { self.waiters.join_if_any(&waiter.call) } else { None };
        let mut is_last = false;
        // Starts at the same value for every new waiter, so that the database sees one limit and not many.
        let mut left = max_wait;
        if let Some(place) = &mut place {
            is_last = !place.until_first(clock, deadline).await;
            left = until(deadline);
        }
        let mut attempts = 0;
        loop {
            attempts += 1;
            span.attempts(attempts);
            if waiter.check_possible(left).is_err() {
                return waiter.deny_with_time(left).await; // Fewer tokens arrive in the time left than when it began to wait.
            }
            let again = match waiter.attempt(left).await? {
                Attempted::Ready { decision, wait, ready_at } => {
                    place = None; // A call that has reserved must not hold up the line.
                    let jitter = waiter.jitter_of_reserved(wait, until(deadline));
                    clock.sleep_until(ready_at + jitter).await;
                    if wait.is_zero() || !waiter.is_blocked().await? {
                        return Ok(decision);
                    }
                    left = until(deadline);
                    continue;
                }
                Attempted::Denied(decision) => return Ok(decision),
                Attempted::Again(again) => again,
            };
            let Some(room) = until(deadline).checked_sub(again.after.saturating_add(again.reserved)) else {
                return Ok(again.denied(clock));
            };
            if is_last {
                return Ok(again.denied(clock));
            }
            let place = place.get_or_insert_with(|| self.waiters.join(&waiter.call));
            if place.is_first() {
                let moment = again.denied_at + again.after + waiter.jitter(again.after, room);
                place.sleeps_until(moment);
                clock.sleep_until(moment).await;
            } else {
                is_last = !place.until_first(clock, deadline).await;
            }
            left = until(deadline);
        }
    }
}

/// A waiting call.
struct Waiter<'l> {
    limiter: &'l Limiter,
    call: Resolved,
    config: WaitConfig,
}

/// The result of one attempt.
enum Attempted {
    /// The tokens are taken, and available after this time, at this moment.
    Ready { decision: Decision, wait: Duration, ready_at: Instant },
    /// The tokens are not available in time.
    Denied(Decision),
    /// The tokens may be available in time: to be retried.
    Again(Again),
}

/// A denial that may be retried within the wait.
struct Again {
    decision: Decision,
    /// When the denial arrived.
    denied_at: Instant,
    /// The time from `denied_at` until a retry can succeed.
    after: Duration,
    /// The shortest wait for the reservation after such a retry.
    reserved: Duration,
    /// The time from `denied_at` until the tokens are available.
    ready: Duration,
}

impl Again {
    fn denied(self, clock: &LocalClock) -> Decision {
        let gone = clock.now().saturating_duration_since(self.denied_at);
        denied(self.decision, self.ready.saturating_sub(gone))
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
        let limits = limiter.transaction_limiter();
        let call = match limits.resolve(Op::Limit, call.clone().reserve()) {
            Err(Error::Invalid(InvalidCall::ReserveUnsupported { .. } | InvalidCall::HeadroomUnsupported { .. })) => {
                limits.resolve(Op::Limit, call)
            }
            resolved => resolved,
        };
        Ok(Self { limiter, call: call?, config })
    }

    /// Returns the call with this much time left: it reserves only tokens that arrive by then.
    fn within(&self, left: Duration) -> Resolved {
        let mut call = self.call.clone();
        if call.reserve {
            for item in &mut call.items {
                item.limit = item.limit.owing_at_most(item.limit.arriving_within(left));
            }
        }
        call
    }

    /// Checks whether the tokens can be available by then, if all buckets are full.
    fn check_possible(&self, left: Duration) -> Result<(), InvalidCall> {
        let call = self.within(left);
        let checked = call.items.iter().try_for_each(|item| item.check_possible(call.reserve));
        checked.map_err(|error| match error {
            InvalidCall::CountExceedsCapacity { limit, count, max, .. } if call.reserve => {
                InvalidCall::WaitTooShort { limit, count, max, max_wait: left }
            }
            other => other,
        })
    }

    /// Whether this call could overtake a line: others may wait for tokens that it could get at once. That happens only
    /// if some waiters cannot reserve.
    fn may_meet_a_line(&self) -> bool {
        !self.call.reserve || self.call.items.iter().any(|item| item.limit.max_reserved().is_some())
    }

    /// Returns whether a gate of the call is blocked by now.
    async fn is_blocked(&self) -> Result<bool, Error> {
        let items: Vec<_> = self.call.items.iter().filter(|item| item.limit.is_gate()).cloned().collect();
        if items.is_empty() {
            return Ok(false);
        }
        let places = (0..items.len()).collect();
        let call = Resolved { op: Op::Check, reserve: false, items, places, ..self.call.clone() };
        let (call, answer) = self.limiter.combiner.submit(call).await?;
        Ok(answer.decision(&call).is_denied())
    }

    /// Returns a denial by the limits that cannot serve the call by then, with the time until the tokens would be
    /// available.
    async fn deny_with_time(&self, left: Duration) -> Result<Decision, Error> {
        let late = self.within(left);
        let call = Resolved { op: Op::Check, ..self.call.clone() };
        let (call, answer) = self.limiter.combiner.submit(call).await?;
        let mut decision = answer.decision(&call);
        for (place, state) in call.places.iter().zip(&mut decision.limits) {
            state.denied |= late.items[*place].check_possible(call.reserve).is_err();
        }
        let wait = decision.retry_after().or(decision.wait()).unwrap_or_default();
        Ok(denied(decision, wait))
    }

    /// Makes one call that may reserve within the time left.
    async fn attempt(&self, left: Duration) -> Result<Attempted, Error> {
        let clock = self.limiter.clock().pinned();
        let (call, answer) = self.limiter.combiner.submit(self.within(left)).await?;
        let answered = clock.now();
        let decision = answer.decision(&call);
        let after = match decision.outcome {
            Outcome::Allowed => {
                return Ok(Attempted::Ready { decision, wait: Duration::ZERO, ready_at: answered });
            }
            Outcome::Reserved { wait } => {
                let decision = Decision { outcome: Outcome::Allowed, ..decision };
                return Ok(Attempted::Ready { decision, wait, ready_at: answered + wait });
            }
            Outcome::Denied { retry_after } => retry_after,
        };
        // `retry_after` is the time until the debt is within its bound. The tokens are available once that debt is
        // paid, too.
        let (mut reserved, mut longest, mut in_time) = (None::<Duration>, Duration::ZERO, true);
        for (place, _) in call.places.iter().zip(&decision.limits).filter(|(_, state)| state.denied) {
            let (own, limit) = (&self.call.items[*place].limit, &call.items[*place].limit);
            let Some(owed) = limit.max_reserved().filter(|_| call.reserve) else { continue };
            let (least, most) = limit.time_to_arrive(owed);
            reserved = Some(reserved.map_or(least, |other| other.min(least)));
            longest = longest.max(most);
            // If the bound is the remaining time itself, to the microsecond, the wait is longer than that, now and
            // later.
            in_time &= limit.kind() != Kind::TokenBucket || own.max_reserved().is_some_and(|own| own <= owed);
        }
        let ready = after.saturating_add(longest);
        if !in_time {
            return Ok(Attempted::Denied(denied(decision, ready)));
        }
        Ok(Attempted::Again(Again {
            decision,
            denied_at: answered,
            after,
            reserved: reserved.unwrap_or_default(),
            ready,
        }))
    }

    /// Returns a random delay for the retry of the first waiter in a line.
    fn jitter(&self, wait: Duration, room: Duration) -> Duration {
        self.spread(self.call.items.iter(), wait, room)
    }

    /// Returns a random delay after a reservation: all waiters of a fixed or calendar window could go ahead when it opens.
    fn jitter_of_reserved(&self, wait: Duration, left: Duration) -> Duration {
        let windows =
            self.call.items.iter().filter(|item| matches!(item.limit.kind(), Kind::FixedWindow | Kind::CalendarWindow));
        self.spread(windows, wait, left.saturating_sub(wait))
    }

    fn spread<'a>(&self, items: impl Iterator<Item = &'a ResolvedItem>, wait: Duration, room: Duration) -> Duration {
        let arrivals = items.map(|item| item.limit.time_to_arrive(item.count).1);
        let span = arrivals.max().unwrap_or_default().min(wait).mul_f64(clamped_fraction(self.config.jitter));
        part_of(span.min(room))
    }
}
