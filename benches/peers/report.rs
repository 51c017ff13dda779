use crate::load::Run;
use crate::peer::Peer;

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_unstable_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(f64::NAN)
}

pub(crate) fn print(runs: &[Run], peers: &[Peer], callers: &[usize]) {
    println!("\n{:<34} {:>7} {:>11} {:>9} {:>9} {:>9}", "", "callers", "decisions/s", "p50 ms", "p99 ms", "retries");
    for callers in callers {
        for peer in peers {
            let of = |figure: &dyn Fn(&Run) -> f64| {
                median(runs.iter().filter(|run| run.peer == peer.name && run.callers == *callers).map(figure).collect())
            };
            println!(
                "{:<34} {callers:>7} {:>11.0} {:>9.3} {:>9.3} {:>9.2}",
                peer.name,
                of(&|run| run.per_second),
                of(&|run| run.p50.as_secs_f64() * 1e3),
                of(&|run| run.p99.as_secs_f64() * 1e3),
                of(&|run| run.retries),
            );
        }
        println!();
    }
}
