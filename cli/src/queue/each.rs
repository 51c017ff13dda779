//! Applies an action to several jobs, one after another.

use std::process::ExitCode;

use serde_json::json;

use crate::error::CliError;
use crate::progress::Progress;
use crate::queue::queues::{Queues, no_such_job};
use crate::{json, output};
use pg_limiter::queue::{JobInfo, JobItem, JobState};
use pg_limiter::{Call, Item, LeaseId, Op};
use pg_limiter::{InvalidCall, Limits};

/// The result of the action on one job.
pub(crate) enum Became {
    /// The text after `job 7`, and a field for the JSON object.
    Done(String, (&'static str, String)),
    /// The reason why the job was left unchanged.
    Refused { state: Option<JobState>, why: String },
}

impl Became {
    pub(super) fn refused(state: JobState, why: impl Into<String>) -> Self {
        Self::Refused { state: Some(state), why: why.into() }
    }
}

/// Applies `act` to each job, which is the work `what`, and prints each result at once. It continues after a job that is refused, and after the
/// reader has closed standard output.
pub(super) async fn each(
    queues: &Queues,
    what: &'static str,
    ids: &[i64],
    as_json: bool,
    act: impl AsyncFn(JobInfo) -> Result<Became, CliError>,
) -> Result<ExitCode, CliError> {
    let mut code = ExitCode::SUCCESS;
    let progress = Progress::parts(what, ids.len());
    for id in ids {
        let became = match queues.job(*id).await? {
            Some(job) => act(job).await?,
            None => Became::Refused { state: None, why: no_such_job(*id) },
        };
        if let Became::Refused { why, .. } = &became {
            code = ExitCode::from(2);
            output::note(why);
        }
        progress.add(1);
        let line = match became {
            Became::Done(_, (name, value)) if as_json => json::line(&json!({"ok": true, "id": id, name: value})),
            Became::Refused { state, why } if as_json => {
                json::line(&json!({"ok": false, "id": id, "state": state.map(JobState::as_str), "message": why}))
            }
            Became::Done(what, _) => format!("job {id} {what}"),
            Became::Refused { .. } => continue,
        };
        match output::line(line) {
            Ok(()) | Err(CliError::OutputClosed) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(code)
}

/// Checks that the limits of the job are defined: the database would omit an undefined one. With [`Op::Limit`], the counts
/// must be possible, too.
pub(super) fn check(job: &JobInfo, op: Op, limits: &Limits) -> Result<(), Became> {
    let call = |items: &[JobItem]| {
        let items = items.iter().map(|item| Item::new(&item.limit, &item.key).count(item.count));
        Call::from(items.collect::<Vec<_>>())
    };
    let checked = if job.items.is_empty() { Ok(()) } else { call(&job.items).reserve().validate(op, limits) };
    let checked = match (op, job.slots.is_empty()) {
        (Op::Limit, false) => checked.and_then(|()| call(&job.slots).lease(LeaseId::random()).validate(op, limits)),
        _ => checked,
    };
    let Err(error) = checked else { return Ok(()) };
    let why = match error {
        InvalidCall::UnknownLimit { limit } => {
            format!(
                "its limit \"{limit}\" is not in the limits file, nor stored in the database; define it in one of them"
            )
        }
        error => error.to_string(),
    };
    Err(Became::refused(job.state, format!("job {}: {why}", job.id)))
}
