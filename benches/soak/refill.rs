//! Keys that refill, and that all callers use continuously. Over the whole run, no more tokens may be admitted than the limit
//! allows for that time.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use fastrand::Rng;
use pg_limiter::Kind;
use tokio::task::JoinSet;

use super::bound::{Admitted, Recent, most, sure_window};
use super::setup::{SLIDING, SoakSetup};
use super::stats::Stats;

const KEY: &str = "everybody";
const BETWEEN_LOOKS: Duration = Duration::from_secs(1);
/// Clocks of two machines do not run equally fast.
const DRIFT: f64 = 0.999;
/// The pause after a denial, so that these callers do not use the server's whole capacity.
const AFTER_DENIAL: Duration = Duration::from_millis(20);

#[derive(Default)]
struct Admissions {
    tokens: f64,
    recent: Recent,
}

pub(super) async fn refill(setup: Arc<SoakSetup>, stats: Arc<Stats>, what: &'static str, callers: u32, mut dice: Rng) {
    let Some(limit) = setup.of(what).copied() else { return };
    let began = match database_time(setup.audit_pool()).await {
        Ok(began) => began,
        Err(error) => return stats.violated(format!("{what}: the clock could not be read: {error}")),
    };
    let admissions = Arc::new(Mutex::new(Admissions::default()));
    let mut tasks = JoinSet::new();
    for _ in 0..callers {
        tasks.spawn(take_until_stopped(
            Arc::clone(&setup),
            Arc::clone(&stats),
            what,
            dice.fork(),
            Arc::clone(&admissions),
        ));
    }
    let is_sliding = limit.kind() == Kind::SlidingWindow;
    loop {
        let goes_on = stats.pause(BETWEEN_LOOKS).await;
        if !goes_on {
            while let Some(joined) = tasks.join_next().await {
                if let Err(error) = joined {
                    stats.violated(format!("{what}: a caller panicked: {error}"));
                }
            }
        }
        let (tokens, within) = {
            let mut admissions = admissions.lock().unwrap_or_else(PoisonError::into_inner);
            let within =
                if is_sliding { admissions.recent.most_within(sure_window(&limit).mul_f64(DRIFT)) } else { 0.0 };
            (admissions.tokens, within)
        };
        // The clock is read after the count, so the time is at least as long as the count's.
        match database_time(setup.audit_pool()).await {
            Ok(now) => {
                let bound = most(&limit, now - began);
                if tokens > bound + 1e-6 * bound.max(1.0) {
                    stats.violated(format!(
                        "{what}: admitted {tokens} in {:.3} s, but the limit allows at most {bound}",
                        now - began
                    ));
                } else if within > limit.rate() {
                    stats.violated(format!(
                        "{what}: admitted {within} within {:?}, but the limit allows at most {}",
                        sure_window(&limit),
                        limit.rate()
                    ));
                } else {
                    stats.audited();
                }
            }
            Err(error) => stats.violated(format!("{what}: the clock could not be read: {error}")),
        }
        if !goes_on {
            return;
        }
    }
}

async fn take_until_stopped(
    setup: Arc<SoakSetup>,
    stats: Arc<Stats>,
    what: &'static str,
    mut dice: Rng,
    admissions: Arc<Mutex<Admissions>>,
) {
    while !stats.is_stopped() {
        let count = f64::from(1 + dice.usize(..2) as u32);
        let asked = Instant::now();
        let answer = setup.any_limiter(&mut dice).limit(setup.item(what, KEY).count(count)).await;
        let answered = Instant::now();
        stats.taken(&answer);
        if answer.as_ref().is_ok_and(pg_limiter::Decision::is_allowed) {
            let mut admissions = admissions.lock().unwrap_or_else(PoisonError::into_inner);
            admissions.tokens += count;
            if what == SLIDING {
                admissions.recent.add(Admitted { asked, answered, count });
            }
        } else if !stats.pause(AFTER_DENIAL).await {
            return;
        }
    }
}

/// The database's time, in seconds since the epoch.
async fn database_time(pool: &sqlx::PgPool) -> Result<f64, sqlx::Error> {
    let sql = "SELECT pg_catalog.date_part('epoch', pg_catalog.clock_timestamp())";
    sqlx::query_scalar(sql).fetch_one(pool).await
}
