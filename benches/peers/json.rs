//! The report as JSON.

use serde_json::{Map, Value, json};

use crate::results::Results;
use crate::stage::Stage;
use crate::targets;

pub(crate) fn of(stage: &Stage, results: &Results) -> Value {
    let run = |(id, figures): (crate::case::Id, crate::results::Figures)| {
        json!({
            "work": id.work,
            "peer": id.peer,
            "callers": id.callers,
            "processes": id.processes,
            "decisions_per_second": figures.per_second,
            "p50_ms": figures.p50_ms,
            "p99_ms": figures.p99_ms,
            "retries_per_decision": figures.retries,
            "server_cpu_us_per_decision": figures.cpu_us,
            "cpu_us_per_decision": figures.cpu_of_all_us,
            "steal_percent": figures.steal_percent,
            "over_admissions": figures.over_admissions,
            "false_denials": figures.false_denials,
        })
    };
    let target = |target: targets::Target| {
        let met = target.met();
        let what = json!({"value": target.value, "target": target.target, "at": target.at.as_str(), "met": met});
        (target.field.to_owned(), what)
    };
    json!({
        "machine": {
            "cores": std::thread::available_parallelism().ok().map(std::num::NonZero::get),
            "postgres": stage.postgres.version(),
            "redis": stage.redis_version(),
        },
        "rounds": stage.options.rounds,
        "seconds": stage.options.time.as_secs_f64(),
        "quick": stage.options.quick,
        "runs": results.lines().into_iter().map(run).collect::<Vec<_>>(),
        "targets": targets::of(results, &stage.options).into_iter().map(target).collect::<Map<_, _>>(),
    })
}
