//! Checks for idle rows: they mean the same as no row, and `prune` removes them.

use crate::doctor::report::Finding;
use crate::doctor::session::Session;
use crate::doctor::table::count;
use crate::export::CLOCK;

/// A table of up to this many pages is counted whole. In a larger table, about this many pages are sampled.
const PAGES: f64 = 1024.0;
/// The number of rows to read on an engine that cannot sample pages.
const ROWS: u32 = 20_000;
/// Fewer idle rows than this do not matter.
const MANY: f64 = 10_000.0;

pub(super) async fn check(session: &mut Session, yugabyte: bool) -> Result<Finding, sqlx::Error> {
    let table = session.table("rate_limits");
    let counts = "count(*)::double precision, (count(*) FILTER (WHERE idle_at <= clock.now))::double precision";
    let clock = format!("(SELECT {CLOCK} AS now) AS clock");
    if yugabyte {
        let sql = format!("SELECT {counts} FROM (SELECT idle_at FROM {table} LIMIT {ROWS}) AS r CROSS JOIN {clock}");
        let (rows, idle) = session.row(&sql).await?;
        let how = if rows < f64::from(ROWS) { How::Counted } else { How::First };
        return Ok(judge(rows, idle, how));
    }
    let sql = format!(
        "SELECT (pg_relation_size(c.oid) / current_setting('block_size')::bigint)::double precision \
         FROM pg_class AS c JOIN pg_namespace AS n ON n.oid = c.relnamespace \
         WHERE n.nspname = {} AND c.relname = 'rate_limits'",
        session.schema_literal()
    );
    let (pages,): (f64,) = session.row(&sql).await?;
    let share = (PAGES / pages).min(1.0);
    let sample = if share < 1.0 { format!("TABLESAMPLE SYSTEM ({})", share * 100.0) } else { String::new() };
    let sql = format!("SELECT {counts} FROM {table} AS r {sample} CROSS JOIN {clock}");
    let (rows, idle): (f64, f64) = session.row(&sql).await?;
    let how = if share < 1.0 { How::Estimated } else { How::Counted };
    Ok(judge(rows / share, idle / share, how))
}

enum How {
    Counted,
    Estimated,
    First,
}

fn judge(rows: f64, idle: f64, how: How) -> Finding {
    let about = match how {
        How::Counted => "",
        How::Estimated => "about ",
        How::First => "in a sample, ",
    };
    let share = if rows > 0.0 { idle / rows } else { 0.0 };
    let (rows, idle) = (rows.round(), idle.round());
    let found =
        format!("{about}{} of {} rows are idle ({:.0} %)", count(idle as i64), count(rows as i64), share * 100.0);
    if idle < MANY || share < 0.5 {
        return Finding::ok(found);
    }
    Finding::warning(found)
        .advise("Run pg-limiter prune, or limiter.prune(), every hour or more often (from cron): it skips locked rows.")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::doctor::report::State::{Ok, Warning};

    #[test]
    fn many_idle_rows_are_a_warning_if_they_are_half_of_the_table() {
        let state = |rows, idle| judge(rows, idle, How::Counted).state;
        assert_eq!([state(0.0, 0.0), state(9_999.0, 9_999.0), state(10_000.0, 10_000.0)], [Ok, Ok, Warning]);
        assert_eq!([state(40_001.0, 20_000.0), state(40_000.0, 20_000.0)], [Ok, Warning]);
        assert_eq!(judge(4e6, 3e6, How::Estimated).found, "about 3,000,000 of 4,000,000 rows are idle (75 %)");
    }
}
