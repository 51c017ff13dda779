use std::time::Duration;

use crate::demo::screen::seconds;
use crate::demo::stage::Stage;
use crate::error::CliError;
use pg_limiter::{Limit, Limits};

const RATE: f64 = 5.0;

pub(super) async fn show(stage: &Stage) -> Result<(), CliError> {
    let screen = &stage.screen;
    screen.heading(2, "Sliding window", "at most 5 calls in the last 2 seconds, counted in 4 sub-intervals")?;
    let limit = Limit::sliding_window(RATE, Duration::from_secs(2)).resolution(4);
    let limiter = stage.limiter(Limits::new().define("searches", limit).map_err(CliError::usage)?);

    let mut promise = None;
    for call in 1..=7 {
        let decision = limiter.limit(("searches", "u1")).await?;
        promise = decision.retry_after().map(|wait| (tokio::time::Instant::now() + wait, wait));
        screen.decision(&format!("call {call}"), &decision, RATE)?;
        tokio::time::sleep(Duration::from_millis(120)).await;
    }
    // After its `retry_after`, the denied call is allowed.
    if let Some((at, wait)) = promise {
        tokio::time::sleep_until(at).await;
        let decision = limiter.limit(("searches", "u1")).await?;
        screen.decision(&format!("{} later", seconds(wait)), &decision, RATE)?;
    }
    Ok(())
}
