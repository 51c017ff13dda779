//! The report as a table.

use crate::results::Results;
use crate::stage::Stage;
use crate::targets;

pub(crate) fn print(stage: &Stage, results: &Results) {
    let options = &stage.options;
    let redis = stage.redis_version().map_or_else(|| "no Redis".to_owned(), |version| format!("Redis {version}"));
    println!("{}, {redis}; medians of {} x {:?}\n", stage.postgres.source(), options.rounds, options.time);
    println!(
        "{:<19} {:<52} {:>9} {:>11} {:>9} {:>9} {:>8} {:>8} {:>8}",
        "", "", "callers", "decisions/s", "p50 ms", "p99 ms", "retries", "CPU us", "steal %"
    );
    let mut work = "";
    for (id, figures) in results.lines() {
        if !work.is_empty() && work != id.work {
            println!();
        }
        work = id.work;
        let callers =
            if id.processes == 1 { id.callers.to_string() } else { format!("{} x {}", id.processes, id.callers) };
        println!(
            "{work:<19} {:<52} {callers:>9} {:>11} {:>9} {:>9} {:>8} {:>8} {:>8}",
            id.peer,
            number(figures.per_second, 0),
            number(figures.p50_ms, 3),
            number(figures.p99_ms, 3),
            number(figures.retries, 2),
            number(figures.cpu_us, 1),
            number(figures.steal_percent, 1),
        );
    }
    println!("\nretries and CPU us (the server's CPU time) are per decision\n");
    for target in targets::of(results, options) {
        let promised = target.target.map(|number| format!("at {} {number}", target.at.as_str()));
        let met = target.met().map_or("", |met| if met { "met" } else { "MISSED" });
        let value = number(target.value, 2);
        println!("{:<34} {value:>11}   {:<17} {met}", target.field, promised.unwrap_or_default());
    }
}

fn number(number: Option<f64>, decimals: usize) -> String {
    number.map_or_else(|| "-".to_owned(), |number| format!("{number:.decimals$}"))
}
