use std::time::{Duration, Instant};

use crate::demo::screen::seconds;
use crate::demo::stage::Stage;
use crate::error::CliError;
use pg_limiter::{Item, Limit, Limits};

const JOBS: usize = 5;

/// Jobs that come all at once get reservations for later times, instead of denials.
pub(super) async fn show(stage: &Stage) -> Result<(), CliError> {
    let screen = &stage.screen;
    screen.heading(3, "Reservations", "2 jobs per second, at most 1 at once; the others wait for their reservation")?;
    let limit = Limit::token_bucket(2, Duration::from_secs(1)).capacity(1);
    let limiter = stage.limiter(Limits::new().define("jobs", limit).map_err(CliError::usage)?);

    let begin = Instant::now();
    let mut waiting = Vec::new();
    for job in 1..=JOBS {
        let decision = limiter.limit(Item::global("jobs").reserve()).await?;
        let wait = decision.wait().unwrap_or_default();
        screen.line(format!(
            "  job {job:<10} {}  wait {}, {:.1} tokens left",
            screen.verdict(&decision),
            seconds(wait),
            decision.remaining()
        ))?;
        waiting.push((job, begin.elapsed() + wait));
    }
    for (job, due) in waiting {
        tokio::time::sleep(due.saturating_sub(begin.elapsed())).await;
        screen.line(format!("  job {job:<10} done at       {}  {}", seconds(begin.elapsed()), "■".repeat(job)))?;
    }
    Ok(())
}
