use std::time::{Duration, Instant};

use serde_json::json;
use tokio::task::JoinSet;

use crate::demo::stage::Stage;
use crate::error::CliError;
use crate::text::grouped;
use pg_limiter::{Error, Limit, Limits};

const TASKS: u64 = 64;
const CALLS: u64 = 16;
const ALLOWS: u32 = 250;

/// Many concurrent tasks on one key: exactly as many calls are allowed as the limit has tokens.
pub(super) async fn show(stage: &Stage) -> Result<(), CliError> {
    let screen = &stage.screen;
    screen.heading(5, "Exact under load", &format!("{TASKS} concurrent tasks on one key with {ALLOWS} tokens"))?;
    // The rate is so slow that no token is refilled during the demo.
    let limit = Limit::token_bucket(1, Duration::from_secs(86_400)).capacity(ALLOWS);
    let limiter = stage.limiter(Limits::new().define("tickets", limit).map_err(CliError::usage)?);

    let begin = Instant::now();
    let mut tasks = JoinSet::new();
    for _ in 0..TASKS {
        let limiter = limiter.clone();
        tasks.spawn(async move {
            let mut allowed = 0;
            for _ in 0..CALLS {
                allowed += u64::from(limiter.limit(("tickets", "concert")).await?.is_allowed());
            }
            Ok::<u64, Error>(allowed)
        });
    }
    let mut allowed = 0;
    while let Some(task) = tasks.join_next().await {
        allowed += task.map_err(CliError::failed)??;
    }
    let took = begin.elapsed().as_secs_f64();

    let calls = TASKS * CALLS;
    let denied = calls - allowed;
    let exact = allowed == u64::from(ALLOWS);
    let verdict = format!("admitted {allowed}, the limit allows {ALLOWS}: {}", if exact { "exact" } else { "WRONG" });
    let line = format!(
        "  {} calls in {took:.2} s: {} allowed, {} denied\n  {}",
        grouped(calls),
        grouped(allowed),
        grouped(denied),
        screen.right_or_wrong(exact, &verdict)
    );
    screen.show(line, json!({"calls": calls, "allowed": allowed, "denied": denied, "exact": exact}))?;
    if exact { Ok(()) } else { Err(CliError::failed(verdict)) }
}
