use std::time::Duration;

use crate::demo::stage::Stage;
use crate::error::CliError;
use pg_limiter::{Limit, Limits};

const CAPACITY: f64 = 10.0;

/// A bucket of tokens for each user, which refills continuously, as in F. Pachot's article on rate limiting in YugabyteDB.
pub(super) async fn show(stage: &Stage) -> Result<(), CliError> {
    let screen = &stage.screen;
    screen.heading(1, "Token bucket", "2 tokens per second for each user, at most 10")?;
    let limit = Limit::token_bucket(2, Duration::from_secs(1)).capacity(CAPACITY);
    let limiter = stage.limiter(Limits::new().define("requests", limit).map_err(CliError::usage)?);

    // One call after another, slow enough to watch, until the bucket is empty.
    for call in 1..=20 {
        let decision = limiter.limit(("requests", "franck")).await?;
        screen.decision(&format!("call {call}"), &decision, CAPACITY)?;
        if decision.is_denied() {
            break;
        }
        tokio::time::sleep(Duration::from_millis(80)).await;
    }
    for halves in 1..=6 {
        tokio::time::sleep(Duration::from_millis(500)).await;
        let balance = limiter.peek(("requests", "franck")).await?.remaining();
        screen.balance(&format!("{:.1} s later", f64::from(halves) / 2.0), balance, CAPACITY)?;
    }
    let decision = limiter.limit(("requests", "franck", 3.0)).await?;
    screen.decision("3 tokens", &decision, CAPACITY)?;
    let decision = limiter.limit(("requests", "somebody else")).await?;
    screen.decision("another user", &decision, CAPACITY)
}
