use std::time::{Duration, Instant};

use serde_json::json;

use crate::demo::screen::{decided, seconds};
use crate::demo::stage::Stage;
use crate::error::CliError;
use crate::json;
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
        let line = format!(
            "  job {job:<10} {}  wait {}, {:.1} tokens left",
            screen.verdict(&decision),
            seconds(wait),
            decision.remaining()
        );
        screen.show(line, decided(&format!("job {job}"), &decision))?;
        waiting.push((job, begin.elapsed() + wait));
    }
    for (job, due) in waiting {
        tokio::time::sleep(due.saturating_sub(begin.elapsed())).await;
        let took = begin.elapsed();
        let line = format!("  job {job:<10} done at       {}  {}", seconds(took), "■".repeat(job));
        screen.show(line, json!({"step": format!("job {job}"), "done_after_ms": json::milliseconds(took)}))?;
    }
    Ok(())
}
