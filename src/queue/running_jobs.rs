//! The jobs that a worker has claimed or runs, and the times at which it claims more.

use std::collections::{HashMap, HashSet, VecDeque};
use std::future::poll_fn;
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use tokio::task::{JoinError, JoinHandle, JoinSet};
use tracing::warn;

use crate::clock::PinnedClock;
use crate::error::Error;
use crate::limiter::Lease;
use crate::queue::info::blocked_by;
use crate::queue::job_leases::JobLeases;
use crate::queue::job_run::{Ended, run_job};
use crate::queue::job_slots::release;
use crate::queue::moving_average::MovingAverage;
use crate::queue::upkeep::{follow_limits, prune, take_over};
use crate::queue::worker::{Worker, WorkerReport};
use crate::queue::{Handler, time};
use crate::sql::queue::{Again, Claim, Claimed, ClaimedJob, KnownLimits, again};
use crate::transact::Kept;

/// The shortest pause after a claim that found only jobs that other workers have locked.
const SHORTEST_PAUSE: Duration = Duration::from_millis(2);

/// The most jobs that one statement claims.
const MOST: usize = 500;

/// A worker claims so few jobs that, by its estimate, none waits longer than this between its time and its start.
const AT_HAND: Duration = Duration::from_millis(20);

/// If the first claimed job is late by more than this, all claimed jobs are given back to the queue.
const TOO_LATE: Duration = Duration::from_secs(1);

/// The assumed duration of a job, until durations are measured.
const SLOW: Duration = Duration::from_secs(1);

/// Bounds of how long before their start jobs are claimed: the duration of a claim, with room to spare.
const LEAST_AHEAD: Duration = Duration::from_millis(5);
const MOST_AHEAD: Duration = Duration::from_millis(100);
/// The first claims of a session are slow. A claim that takes longer than it looks ahead can give a token that arrives meanwhile to a
/// job of a lower priority.
const FIRST_CLAIM: Duration = Duration::from_millis(17);

/// A worker that will not claim for so long does not keep the connection of its claims.
const IDLE_FOR: Duration = Duration::from_millis(200);

/// A claimed job that has not started.
struct AtHand {
    at: Instant,
    job: ClaimedJob,
    /// As of the claim: the lease counts from before it. The database may have answered by a time that a test clock shows to
    /// this process only later.
    clock: PinnedClock,
    /// The lease of its slots, which are released when this is dropped.
    slot_lease: Option<Lease>,
}

/// How a start ended.
struct EndedJob {
    ended: Ended,
    /// The job's group, if that is now held by a `Finish::Wait`.
    held_group: Option<String>,
    /// Whether the job had slots, which others may take now.
    had_slots: bool,
}

pub(super) struct RunningJobs<'w, H> {
    worker: &'w Worker<H>,
    leases: Arc<JobLeases>,
    /// Claimed jobs and the times at which they start, in order.
    at_hand: VecDeque<AtHand>,
    running: JoinSet<EndedJob>,
    /// Tasks that have ended and are not counted yet.
    ended: Vec<EndedJob>,
    taking_over: JoinSet<()>,
    /// When to claim next.
    look_at: Instant,
    /// The connection that claims while there are more jobs.
    kept: Arc<Kept>,
    pause: Duration,
    /// How many other jobs it has started while one of the lowest priority was due.
    passed_over: i32,
    /// Moving averages of the durations of claims and of jobs.
    to_claim: MovingAverage,
    to_run: MovingAverage,
    report: WorkerReport,
    /// The limits that were reported as unknown.
    reported: HashSet<String>,
    helpers: Vec<JoinHandle<()>>,
}

impl<H> Drop for RunningJobs<'_, H> {
    fn drop(&mut self) {
        self.helpers.iter().for_each(JoinHandle::abort);
    }
}

impl<'w, H: Handler> RunningJobs<'w, H> {
    pub(super) fn new(worker: &'w Worker<H>) -> Self {
        let leases = Arc::new(JobLeases::default());
        let Worker { queue, config, .. } = worker;
        let (context, lease, kept) = (queue.context.clone(), config.lease, Arc::clone(&leases));
        let keeper = tokio::spawn(async move { kept.keep(&context, lease).await });
        let pruner = tokio::spawn(prune(queue.clone(), config.keep_ended));
        let helpers = vec![
            keeper,
            pruner,
            tokio::spawn(follow_limits(queue.clone(), worker.name.clone())),
            #[cfg(feature = "metrics")]
            tokio::spawn(crate::queue::gauges::watch(queue.clone())),
        ];
        Self {
            worker,
            leases,
            at_hand: VecDeque::new(),
            running: JoinSet::new(),
            ended: Vec::new(),
            taking_over: JoinSet::new(),
            look_at: Instant::now(),
            kept: Arc::default(),
            pause: SHORTEST_PAUSE,
            passed_over: 0,
            to_claim: MovingAverage::new(FIRST_CLAIM),
            to_run: MovingAverage::new(SLOW),
            report: WorkerReport::default(),
            reported: HashSet::new(),
            helpers,
        }
    }

    /// Counts the jobs that have ended, claims more if it is time to, and starts those that are due. Returns only errors that
    /// a retry does not cure.
    pub(super) async fn move_on(&mut self, listens: bool) -> Result<(), Error> {
        self.kept.release_unused();
        self.start_next().await;
        if self.may_look() && Instant::now() >= self.look_at {
            self.look(self.room(), listens).await?;
            self.start_next().await;
        }
        Ok(())
    }

    /// Counts the jobs that have ended, and starts those that are due. Returns the groups that `Finish::Wait` holds since.
    async fn start_next(&mut self) -> Vec<String> {
        let held = self.count_ended().await;
        // Before any job starts: the process may have been paused, or all its tasks busy, while these jobs became late.
        if self.at_hand.front().is_some_and(|first| first.at.elapsed() > TOO_LATE) {
            self.give_back(|_| true).await; // Jobs take longer than before: other workers may be free.
        }
        self.start_due();
        held
    }

    /// Whether to claim more jobs: the worker is idle, or there is room for so many that an expensive claim pays off.
    fn may_look(&self) -> bool {
        let is_free = self.at_hand.is_empty() && self.running.len() < self.worker.config.concurrency;
        let room = self.room();
        room > 0 && (is_free || room * 2 >= self.capacity())
    }

    /// How many jobs this worker may have: those that run at once, and more if jobs are so short that these start soon.
    fn capacity(&self) -> usize {
        let concurrency = self.worker.config.concurrency;
        let rounds = AT_HAND.as_secs_f64() / self.to_run.get().as_secs_f64().max(1e-4);
        concurrency.saturating_add((concurrency as f64 * rounds.min(16.0)) as usize)
    }

    fn room(&self) -> usize {
        self.capacity().saturating_sub(self.running.len() + self.at_hand.len())
    }

    /// The next time at which there is something to do, if no job ends earlier.
    pub(super) fn next_move(&self) -> Instant {
        let look_at = Some(self.look_at).filter(|_| self.may_look());
        let next = self.next_start();
        [look_at, self.kept.until()].into_iter().flatten().fold(next, Instant::min)
    }

    fn next_start(&self) -> Instant {
        let is_full = self.running.len() >= self.worker.config.concurrency;
        let start_at = self.at_hand.front().map(|first| first.at).filter(|_| !is_full);
        start_at.unwrap_or_else(|| Instant::now() + self.worker.config.poll)
    }

    /// Ready when a job has ended.
    pub(super) fn poll_ended(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        match self.running.poll_join_next(cx) {
            Poll::Ready(Some(ended)) => {
                self.ended.push(of_task(ended));
                Poll::Ready(())
            }
            Poll::Ready(None) | Poll::Pending => Poll::Pending,
        }
    }

    pub(super) fn look_now(&mut self) {
        self.look_at = Instant::now();
    }

    /// Returns the groups that are held since. Their claimed jobs are given back.
    async fn count_ended(&mut self) -> Vec<String> {
        let mut held = Vec::new();
        while let Some(ended) = self.running.try_join_next() {
            self.ended.push(of_task(ended));
        }
        for EndedJob { ended, held_group, had_slots } in std::mem::take(&mut self.ended) {
            self.report.count(ended);
            if ended != Ended::Done || had_slots {
                self.look_now(); // It may be due again before any other job, or another job takes its slots.
            }
            held.extend(held_group);
        }
        if !held.is_empty() {
            self.give_back(|job| held.contains(&job.key)).await;
        }
        while self.taking_over.try_join_next().is_some() {
            self.look_now();
        }
        held
    }

    async fn look(&mut self, room: usize, listens: bool) -> Result<(), Error> {
        let (asked, clock) = (Instant::now(), self.worker.queue.limiter().clock().pinned());
        let asked_at = clock.now();
        let (worker, ahead, passed_over) = (self.worker, self.ahead(), self.passed_over);
        let kept = Arc::clone(&self.kept);
        self.look_at = asked + worker.config.poll; // Earlier if a job that ends meanwhile may be due again: see look_now.
        let mut claiming = pin!(claim(worker, &kept, room, listens, ahead, passed_over));
        let mut held = Vec::new();
        let claimed = loop {
            let mut next_start = pin!(tokio::time::sleep_until(self.next_start().into()));
            let claimed = poll_fn(|cx| match claiming.as_mut().poll(cx) {
                Poll::Ready(claimed) => Poll::Ready(Some(claimed)),
                Poll::Pending if self.poll_ended(cx).is_ready() => Poll::Ready(None),
                Poll::Pending => next_start.as_mut().poll(cx).map(|()| None),
            });
            match claimed.await {
                Some(claimed) => break claimed,
                // The claimed jobs do not wait for the answer, or else each claim would leave the worker idle.
                None => held.extend(self.start_next().await),
            }
        };
        match claimed {
            Ok(claimed) => {
                let now = Instant::now();
                self.to_claim.add(now - asked);
                if claimed.lapsed && self.taking_over.is_empty() {
                    self.taking_over.spawn(take_over(self.worker.queue.clone(), self.limits()));
                }
                self.report_unknown(&claimed.blocked_names);
                self.passed_over = claimed.passed.unwrap_or(self.passed_over);
                let wanted_at = self.look_at;
                self.plan(&claimed, now, claimed.jobs.len() >= room.min(MOST));
                self.look_at = self.look_at.min(wanted_at);
                // If the answer to an earlier claim came later than this one, its jobs seem to start later, too: so none starts before
                // the last one of its group.
                let mut last_of: HashMap<String, Instant> =
                    self.at_hand.iter().map(|last| (last.job.key.clone(), last.at)).collect();
                for job in claimed.jobs {
                    self.leases.add(job.id, job.starts, asked_at + self.worker.config.lease);
                    let at = last_of.get_mut(&job.key).map_or(job.at(), |last| {
                        *last = job.at().max(*last);
                        *last
                    });
                    let slot_lease = self.worker.queue.slots_of(&job, asked_at);
                    self.at_hand.push_back(AtHand { at, job, clock, slot_lease });
                }
                self.at_hand.make_contiguous().sort_by_key(|job| job.at); // The sort is stable.
                if !held.is_empty() {
                    self.give_back(|job| held.contains(&job.key)).await; // They may have been claimed before.
                }
            }
            Err(
                error @ (Error::Unavailable { .. }
                | Error::RetriesExhausted { .. }
                | Error::OutcomeUnknown { .. }
                | Error::Conflict { .. }),
            ) => {
                warn!(%error, queue = self.worker.queue.name(), "cannot look for jobs; trying again");
                self.look_at = Instant::now() + self.pause;
                self.pause = (self.pause * 2).min(self.worker.config.poll.max(Duration::from_secs(1)));
            }
            Err(error) => return Err(error),
        }
        Ok(())
    }

    /// Logs each limit once that due jobs need and that this worker does not know.
    fn report_unknown(&mut self, names: &[String]) {
        for name in names {
            if !self.reported.insert(name.clone()) {
                continue;
            }
            warn!(
                queue = self.worker.queue.name(),
                limit = blocked_by(name),
                "jobs need a limit that this worker does not define, or defines as another kind, and no worker has started \
                 them for 10 s; define the limit for the workers, or cancel the jobs"
            );
        }
    }

    /// The limiter's limits, as they are now.
    fn limits(&self) -> KnownLimits {
        KnownLimits::all(&self.worker.queue.limiter().limits())
    }

    fn ahead(&self) -> Duration {
        (self.to_claim.get() * 3).clamp(LEAST_AHEAD, MOST_AHEAD)
    }

    /// Sets when to claim next.
    fn plan(&mut self, claimed: &Claimed, now: Instant, is_full: bool) {
        let poll = self.worker.config.poll;
        self.look_at = match claimed.next_in.map(|micros| time::wait(Some(micros)).saturating_sub(self.ahead())) {
            // As soon as there is room, because more jobs may be due.
            _ if claimed.look_again || is_full => now,
            Some(Duration::ZERO) if claimed.jobs.is_empty() => {
                // Another worker has locked the jobs that are due.
                let pause = self.pause.min(poll);
                self.pause = (self.pause * 2).min(poll);
                now + pause
            }
            Some(next_in) => now + next_in.min(poll),
            None => now + poll,
        };
        if self.look_at > now + IDLE_FOR {
            self.kept.release();
        }
        if !claimed.jobs.is_empty() {
            self.pause = SHORTEST_PAUSE;
        }
    }

    fn start_due(&mut self) {
        let now = Instant::now();
        while self.running.len() < self.worker.config.concurrency {
            match self.at_hand.pop_front() {
                Some(due) if due.at <= now => self.start(due),
                Some(early) => {
                    self.at_hand.push_front(early);
                    break;
                }
                None => break,
            }
        }
    }

    fn start(&mut self, AtHand { job, clock, slot_lease, .. }: AtHand) {
        let Worker { queue, config, handler, .. } = self.worker;
        let (id, starts, group) = (job.id, job.starts, job.key.clone());
        if !self.leases.holds(id, starts, clock.now()) {
            // Another worker may have it by now. If none has, its lease must not be extended any more, so that one takes it over.
            self.leases.remove(id, starts);
            return;
        }
        let (leases, to_run) = (Arc::clone(&self.leases), self.to_run.clone());
        let (name, context, kept) = (Arc::clone(&queue.name), queue.context.clone(), Arc::clone(&leases));
        let had_slots = slot_lease.is_some();
        let running = run_job(name, context, config.clone(), Arc::clone(handler), job, kept, slot_lease);
        let handle = self.running.spawn(async move {
            let began = Instant::now();
            let (ended, holds_group) = running.await;
            to_run.add(began.elapsed());
            leases.remove(id, starts);
            EndedJob { ended, held_group: holds_group.then_some(group), had_slots }
        });
        self.leases.runs(id, starts, handle);
    }

    /// Gives claimed jobs that have not started back to the queue.
    async fn give_back(&mut self, which: impl Fn(&ClaimedJob) -> bool) {
        let (back, kept): (VecDeque<_>, _) =
            std::mem::take(&mut self.at_hand).into_iter().partition(|at_hand| which(&at_hand.job));
        self.at_hand = kept;
        for AtHand { job, .. } in &back {
            self.leases.remove(job.id, job.starts);
        }
        self.again(back.iter().map(|AtHand { job, .. }| (job.id, job.starts)).collect(), Again::Unstarted).await;
        for lease in back.into_iter().filter_map(|at_hand| at_hand.slot_lease) {
            release(lease).await;
        }
    }

    /// One transaction each: two jobs would lock the rows of two limits, in no fixed order.
    async fn again(&self, jobs: Vec<(i64, i32)>, reason: Again) {
        for (id, starts) in jobs {
            let arguments = ([id], [starts], reason, self.limits());
            let given_back = self.worker.queue.context.own(arguments, |conn, sql, (ids, starts, reason, limits)| {
                Box::pin(again(conn, sql, (ids, starts), (*reason, 0, ""), limits))
            });
            if let Err(error) = given_back.await {
                warn!(queue = self.worker.queue.name(), job = id, %error, "cannot give a job back; it runs again when its lease expires");
            }
        }
    }

    /// Waits for the running jobs, up to the worker's patience, and gives the rest back to the queue.
    pub(super) async fn wind_up(mut self) -> WorkerReport {
        self.give_back(|_| true).await;
        let patience = self.worker.config.patience.min(Duration::from_secs(365 * 86_400));
        let deadline = Instant::now() + patience;
        while let Ok(Some(ended)) = tokio::time::timeout_at(deadline.into(), self.running.join_next()).await {
            self.report.count(of_task(ended).ended);
        }
        let abandoned = self.leases.abandon();
        self.report.lost += self.running.len() as u64;
        self.running.shutdown().await;
        self.again(abandoned, Again::Released).await;
        for helper in &mut self.helpers {
            helper.abort();
            let _ = helper.await; // Wait until it is dropped, so that no gauge keeps an old value.
        }
        self.report
    }
}

/// Not to be dropped half-way: its jobs would run nowhere until their leases expire.
async fn claim<H: Handler>(
    worker: &Worker<H>,
    kept: &Kept,
    room: usize,
    listens: bool,
    ahead: Duration,
    passed_over: i32,
) -> Result<Claimed, Error> {
    let Worker { queue, config, name, .. } = worker;
    let limits = KnownLimits::all(&queue.limiter().limits());
    let request = Claim {
        queue: queue.name(),
        worker: name,
        most: i32::try_from(room.min(MOST)).unwrap_or(i32::MAX),
        ahead: time::capped(ahead),
        lease: time::capped(config.lease),
        sleep: time::capped(config.poll),
        limits: &limits,
        listens,
        passed_over,
    };
    queue.context.claim(request, kept).await
}

/// A task that was aborted counts as lost.
fn of_task(ended: Result<EndedJob, JoinError>) -> EndedJob {
    ended.unwrap_or(EndedJob { ended: Ended::Lost, held_group: None, had_slots: false })
}
