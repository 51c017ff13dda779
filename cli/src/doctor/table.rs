//! Checks the health of a table: its size, its dead rows, its vacuums, and whether rows are updated in place.

use std::time::Duration;

use crate::doctor::report::Finding;
use crate::doctor::session::{Session, Settings};
use crate::text::{age, grouped};

/// Fewer dead rows than this are not reported.
const MANY_DEAD: i64 = 10_000;
/// With at least this many dead versions, and this many for each live row, the versions of a hot row are not removed.
const MANY_VERSIONS: i64 = 1_000;
const MANY_OF_A_ROW: i64 = 10;
/// Fewer updates than this are not judged.
const MANY_UPDATES: i64 = 10_000;
const IN_PLACE: f64 = 0.9;

pub(super) struct Table {
    name: String,
    bytes: i64,
    index_bytes: i64,
    options: String,
    live: i64,
    dead: i64,
    updates: i64,
    in_place: i64,
    /// Seconds since the last vacuum.
    vacuumed: Option<f64>,
    /// Indexes on columns that change, separated by commas.
    in_the_way: String,
}

impl Table {
    pub(super) async fn read(session: &mut Session, name: &str) -> Result<Self, sqlx::Error> {
        let sql = format!(
            "SELECT pg_table_size(c.oid), pg_indexes_size(c.oid), coalesce(array_to_string(c.reloptions, ','), ''), \
               coalesce(s.n_live_tup, 0), coalesce(s.n_dead_tup, 0), coalesce(s.n_tup_upd, 0), coalesce(s.n_tup_hot_upd, 0), \
               date_part('epoch', clock_timestamp() - greatest(s.last_autovacuum, s.last_vacuum)), \
               coalesce((SELECT string_agg(i.indexrelid::regclass::text, ', ' ORDER BY i.indexrelid) \
                 FROM pg_index AS i WHERE i.indrelid = c.oid AND (i.indexprs IS NOT NULL OR i.indpred IS NOT NULL \
                   OR EXISTS (SELECT FROM pg_attribute AS a WHERE a.attrelid = c.oid AND a.attnum = ANY (i.indkey) \
                     AND a.attname NOT IN ('name', 'key', 'shard')))), '') \
             FROM pg_class AS c JOIN pg_namespace AS n ON n.oid = c.relnamespace \
             JOIN pg_stat_all_tables AS s ON s.relid = c.oid \
             WHERE n.nspname = {} AND c.relname = '{name}'",
            session.schema_literal()
        );
        let row = session.row(&sql).await?;
        let (bytes, index_bytes, options, live, dead, updates, in_place, vacuumed, in_the_way) = row;
        let name = session.table(name);
        Ok(Self { name, bytes, index_bytes, options, live, dead, updates, in_place, vacuumed, in_the_way })
    }

    fn option(&self, name: &str) -> Option<&str> {
        let pair = |option: &'_ str| option.split_once('=').map(|(key, _)| key == name).unwrap_or_default();
        self.options.split(',').find(|option| pair(option)).and_then(|option| Some(option.split_once('=')?.1))
    }

    /// Whether old row versions pile up. If so, an open transaction makes every further update more expensive.
    pub(super) fn piles_up(&self) -> bool {
        self.dead >= MANY_VERSIONS && self.dead >= MANY_OF_A_ROW * self.live
    }

    pub(super) fn size(&self) -> Finding {
        let Self { name, live, dead, .. } = self;
        let found = format!(
            "{name} has {}, indexes {}; about {} live rows, {} dead",
            bytes(self.bytes),
            bytes(self.index_bytes),
            count(*live),
            count(*dead),
        );
        if *dead <= MANY_DEAD.max(*live) {
            return Finding::ok(found);
        }
        Finding::warning(found)
            .advise(format!(
                "VACUUM {name}; -- and see below why autovacuum did not run, or what prevents it from removing dead rows"
            ))
            .advise("The table keeps its size. VACUUM FULL shrinks it, but blocks all callers while it runs.")
    }

    pub(super) fn vacuum(&self, settings: &Settings) -> Finding {
        let off = |value: Option<&str>| matches!(value, Some("off" | "false" | "no" | "0"));
        if off(settings.get("autovacuum")) || off(settings.get("track_counts")) {
            let found = format!(
                "off for the whole server: {}, {}",
                settings.shown("autovacuum"),
                settings.shown("track_counts")
            );
            return Finding::warning(found).advise("Set autovacuum = on and track_counts = on in postgresql.conf.");
        }
        if off(self.option("autovacuum_enabled")) {
            return Finding::warning(format!("off for {}", self.name))
                .advise(format!("ALTER TABLE {} RESET (autovacuum_enabled);", self.name));
        }
        Finding::ok(match self.vacuumed {
            Some(seconds) => format!("on; {} was vacuumed {} ago", self.name, age(length(seconds))),
            None => format!("on; {} has not needed a vacuum yet", self.name),
        })
    }

    pub(super) fn updates(&self) -> Finding {
        let share = if self.updates > 0 { self.in_place as f64 / self.updates as f64 } else { 1.0 };
        let fillfactor = self.option("fillfactor").unwrap_or("100");
        let found = match self.updates {
            0 => format!("no row has been updated yet, at fillfactor {fillfactor}"),
            updates => format!(
                "{:.0} % of {} updates were made in place (HOT), at fillfactor {fillfactor}",
                (share * 100.0).floor(),
                count(updates)
            ),
        };
        if !self.in_the_way.is_empty() {
            let indexes = &self.in_the_way;
            return Finding::warning(format!("{found}; updates in place are prevented by {indexes}")).advise(format!(
                "DROP INDEX {indexes}; -- each decision also writes to an index on a column that changes"
            ));
        }
        if self.updates >= MANY_UPDATES && share < IN_PLACE {
            return Finding::warning(found)
                .advise(format!(
                    "ALTER TABLE {} SET (fillfactor = 70); -- or lower; then run VACUUM FULL once",
                    self.name
                ))
                .advise(
                    "Long transactions are another cause: while one is open, the space of dead rows is not reused.",
                );
        }
        if fillfactor.parse().is_ok_and(|percent: u32| percent > 90) {
            return Finding::note(found)
                .advise(format!("ALTER TABLE {} SET (fillfactor = 70); -- as the migrations set it", self.name));
        }
        Finding::ok(found)
    }
}

pub(crate) fn bytes(bytes: i64) -> String {
    const UNITS: [&str; 4] = ["kB", "MB", "GB", "TB"];
    let mut size = bytes as f64 / 1024.0;
    let mut unit = 0;
    while size >= 1024.0 && unit + 1 < UNITS.len() {
        size /= 1024.0;
        unit += 1;
    }
    if size >= 10.0 { format!("{size:.0} {}", UNITS[unit]) } else { format!("{size:.1} {}", UNITS[unit]) }
}

pub(super) fn count(number: i64) -> String {
    grouped(u64::try_from(number).unwrap_or_default())
}

/// Converts a length that the database computed, which may be slightly negative.
pub(super) fn length(seconds: f64) -> Duration {
    Duration::try_from_secs_f64(seconds.max(0.0)).unwrap_or(Duration::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::doctor::report::State::{self, Note, Ok, Warning};

    fn table() -> Table {
        Table {
            name: "rate_limit.rate_limits".to_owned(),
            bytes: 8192,
            index_bytes: 16_384,
            options: "fillfactor=70".to_owned(),
            live: 100,
            dead: 50,
            updates: 0,
            in_place: 0,
            vacuumed: None,
            in_the_way: String::new(),
        }
    }

    #[test]
    fn dead_rows_and_updates_that_are_not_hot_are_reported() {
        assert_eq!([table().size().state, table().updates().state], [Ok, Ok]);
        let state = |dead, live| Table { dead, live, ..table() }.size().state;
        assert_eq!(
            [state(10_000, 5), state(10_001, 5), state(50_000, 60_000), state(60_001, 60_000)],
            [Ok, Warning, Ok, Warning]
        );
        let state = |updates, in_place| -> State { Table { updates, in_place, ..table() }.updates().state };
        assert_eq!([state(9_999, 0), state(10_000, 9_000), state(10_000, 8_999)], [Ok, Ok, Warning]);
        let finding = Table { updates: 10_000, in_place: 8_999, ..table() }.updates();
        assert_eq!(finding.found, "89 % of 10,000 updates were made in place (HOT), at fillfactor 70");
        assert_eq!(Table { options: String::new(), ..table() }.updates().state, Note);
    }

    #[test]
    fn sizes_are_short() {
        let sizes = [0, 8192, 10_240, 1_048_575, 1_048_576, 5 << 40, i64::MAX].map(bytes);
        assert_eq!(sizes, ["0.0 kB", "8.0 kB", "10 kB", "1024 kB", "1.0 MB", "5.0 TB", "8388608 TB"]);
    }
}
