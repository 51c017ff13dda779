//! Checks a table: its size, dead and idle rows, vacuums, and updates in place; and long transactions, which keep dead rows and locks.

use std::time::Duration;

use serde::Deserialize;

use crate::operate::doctor::{Finding, Session, Settings};
use crate::operate::export::CLOCK;
use crate::text::{age, grouped, many, one_line};

const MANY_DEAD: u64 = 10_000;
/// With at least this many dead versions, and this many for each live row, the versions of a hot row are not removed.
const MANY_VERSIONS: u64 = 1_000;
const MANY_OF_A_ROW: u64 = 10;
const MANY_UPDATES: u64 = 10_000;
const IN_PLACE: f64 = 0.9;

#[derive(Clone, Debug, Default, Deserialize)]
pub(crate) struct Table {
    pub(crate) name: String,
    pub(crate) bytes: i64,
    pub(crate) index_bytes: i64,
    options: String,
    pub(crate) live: u64,
    pub(crate) dead: u64,
    pub(crate) updates: u64,
    /// Updates that wrote no index.
    pub(crate) in_place: u64,
    pub(crate) vacuumed_at: Option<i64>,
    at: i64,
    /// Indexes on columns that change, separated by commas.
    in_the_way: String,
}

impl Table {
    /// A query for tables of a schema by their names, as JSON. `schema` and `names` are SQL strings.
    pub(crate) fn query(schema: &str, names: &str) -> String {
        format!(
            "SELECT to_json(t)::text FROM ( \
               SELECT s.relname AS name, pg_table_size(c.oid) AS bytes, pg_indexes_size(c.oid) AS index_bytes, \
                 coalesce(array_to_string(c.reloptions, ','), '') AS options, \
                 coalesce(s.n_live_tup, 0) AS live, coalesce(s.n_dead_tup, 0) AS dead, \
                 coalesce(s.n_tup_upd, 0) AS updates, coalesce(s.n_tup_hot_upd, 0) AS in_place, \
                 (date_part('epoch', greatest(s.last_autovacuum, s.last_vacuum)) * 1000000)::bigint AS vacuumed_at, {CLOCK} AS at, \
                 coalesce((SELECT string_agg(i.indexrelid::regclass::text, ', ' ORDER BY i.indexrelid) \
                   FROM pg_index AS i WHERE i.indrelid = c.oid AND (i.indexprs IS NOT NULL OR i.indpred IS NOT NULL \
                     OR EXISTS (SELECT FROM pg_attribute AS a WHERE a.attrelid = c.oid AND a.attnum = ANY (i.indkey) \
                       AND a.attname NOT IN ('name', 'key', 'shard')))), '') AS in_the_way \
               FROM pg_stat_all_tables AS s JOIN pg_class AS c ON c.oid = s.relid \
               WHERE s.schemaname = {schema} AND s.relname IN ({names}) ORDER BY s.relname) AS t"
        )
    }

    pub(super) async fn read(session: &mut Session, name: &str) -> sqlx::Result<Self> {
        let (json,): (String,) = session.row(&Self::query(&session.schema_literal, &format!("'{name}'"))).await?;
        let table: Self = serde_json::from_str(&json).map_err(|error| sqlx::Error::Decode(error.into()))?;
        Ok(Self { name: session.table(name), ..table })
    }

    fn option(&self, name: &str) -> Option<&str> {
        let mut options = self.options.split(',').filter_map(|option| option.split_once('='));
        options.find(|(key, _)| *key == name).map(|(_, value)| value)
    }

    /// Whether old row versions pile up. If so, an open transaction makes every further update more expensive.
    pub(super) fn piles_up(&self) -> bool {
        self.dead >= MANY_VERSIONS && self.dead >= MANY_OF_A_ROW * self.live
    }

    pub(super) fn size(&self) -> Finding {
        let name = &self.name;
        let [size, indexes] = [self.bytes, self.index_bytes].map(bytes);
        let (live, dead) = (many(self.live, "live row"), grouped(self.dead));
        Finding::warning(format!("{name} has {size}, indexes {indexes}; about {live}, {dead} dead"))
            .advise(format!(
                "VACUUM {name}; -- and see below why autovacuum did not run, or what prevents it from removing dead rows"
            ))
            .advise("The table keeps its size. VACUUM FULL shrinks it, but blocks all callers while it runs.")
            .ok_if(self.dead <= MANY_DEAD.max(self.live))
    }

    pub(super) fn vacuum(&self, settings: &Settings) -> Finding {
        let off = |value: Option<&str>| matches!(value, Some("off" | "false" | "no" | "0"));
        if off(settings.get("autovacuum")) || off(settings.get("track_counts")) {
            let [vacuum, counts] = ["autovacuum", "track_counts"].map(|name| settings.shown(name));
            let found = format!("off for the whole server: {vacuum}, {counts}");
            return Finding::warning(found).advise("Set autovacuum = on and track_counts = on in postgresql.conf.");
        }
        if off(self.option("autovacuum_enabled")) {
            return Finding::warning(format!("off for {}", self.name))
                .advise(format!("ALTER TABLE {} RESET (autovacuum_enabled);", self.name));
        }
        Finding::ok(match self.vacuumed_at {
            Some(at) => format!("on; {} was vacuumed {} ago", self.name, age(micros(self.at - at))),
            None => format!("on; {} has not needed a vacuum yet", self.name),
        })
    }

    pub(super) fn updates(&self) -> Finding {
        let share = if self.updates > 0 { self.in_place as f64 / self.updates as f64 } else { 1.0 };
        let fillfactor = self.option("fillfactor").unwrap_or("100");
        let (percent, updates) = ((share * 100.0).floor(), many(self.updates, "update"));
        let were = if self.updates == 1 { "was" } else { "were" };
        let found = match self.updates {
            0 => format!("no row has been updated yet, at fillfactor {fillfactor}"),
            _ => format!("{percent} % of {updates} {were} made in place (HOT), at fillfactor {fillfactor}"),
        };
        let fill = format!("ALTER TABLE {} SET (fillfactor = 70);", self.name);
        match self.in_the_way.as_str() {
            "" if self.updates >= MANY_UPDATES && share < IN_PLACE && self.piles_up() => {
                Finding::warning(found).advise("Dead rows take the space. See `old transactions` for what keeps them.")
            }
            "" if self.updates >= MANY_UPDATES && share < IN_PLACE => {
                Finding::warning(found).advise(format!("{fill} -- or lower; then run VACUUM FULL once")).advise(
                    "Long transactions are another cause: while one is open, the space of dead rows is not reused.",
                )
            }
            "" if fillfactor.parse().is_ok_and(|percent: u32| percent > 90) => {
                Finding::note(found).advise(format!("{fill} -- as the migrations set it"))
            }
            "" => Finding::ok(found),
            indexes => Finding::warning(format!("{found}; updates in place are prevented by {indexes}")).advise(
                format!("DROP INDEX {indexes}; -- each decision also writes to an index on a column that changes"),
            ),
        }
    }
}

/// A table of up to this many pages is counted whole. In a larger table, about this many pages are sampled.
const PAGES: f64 = 1024.0;
/// The number of rows to read on an engine that cannot sample pages.
const ROWS: u32 = 20_000;
const MANY_IDLE: f64 = 10_000.0;

/// Idle rows mean the same as no row, and `prune` removes them.
pub(super) async fn idle_rows(session: &mut Session) -> sqlx::Result<Finding> {
    let table = session.table("rate_limits");
    let counts = "count(*)::double precision, (count(*) FILTER (WHERE idle_at <= clock.now))::double precision";
    let clock = format!("(SELECT {CLOCK} AS now) AS clock");
    if session.is_yugabyte {
        let sql = format!("SELECT {counts} FROM (SELECT idle_at FROM {table} LIMIT {ROWS}) AS r CROSS JOIN {clock}");
        let (rows, idle) = session.row(&sql).await?;
        return Ok(judge_idle(if rows < f64::from(ROWS) { "" } else { "in a sample, " }, rows, idle));
    }
    let sql = format!(
        "SELECT (pg_relation_size(c.oid) / current_setting('block_size')::bigint)::double precision \
         FROM {} WHERE c.relname = 'rate_limits'",
        session.relations
    );
    let (pages,): (f64,) = session.row(&sql).await?;
    let share = (PAGES / pages).min(1.0);
    let (about, sample) = match share < 1.0 {
        true => ("about ", format!("TABLESAMPLE SYSTEM ({})", share * 100.0)),
        false => ("", String::new()),
    };
    let sql = format!("SELECT {counts} FROM {table} AS r {sample} CROSS JOIN {clock}");
    let (rows, idle): (f64, f64) = session.row(&sql).await?;
    Ok(judge_idle(about, rows / share, idle / share))
}

fn judge_idle(about: &str, rows: f64, idle: f64) -> Finding {
    let share = if rows > 0.0 { idle / rows } else { 0.0 };
    let (rows, idle) = (rows.round(), idle.round());
    let (are, percent) = (if idle == 1.0 { "is" } else { "are" }, share * 100.0);
    let found = format!("{about}{} of {} {are} idle ({percent:.0} %)", grouped(idle as u64), many(rows as u64, "row"));
    Finding::warning(found)
        .advise("Run pg-limiter prune, or limiter.prune(), every hour or more often (from cron): it skips locked rows.")
        .ok_if(idle < MANY_IDLE || share < 0.5)
}

pub(crate) fn bytes(bytes: i64) -> String {
    let units = ["kB", "MB", "GB", "TB"];
    let nth = (bytes.max(1024).ilog2() as usize / 10).min(units.len());
    let size = bytes as f64 / 1024_f64.powi(nth as i32);
    let digits = usize::from(size < 10.0);
    format!("{size:.digits$} {}", units[nth - 1])
}

pub(super) fn count(number: i64) -> String {
    grouped(u64::try_from(number).unwrap_or_default())
}

/// Converts a length that the database computed, which may be slightly negative.
pub(super) fn micros(length: i64) -> Duration {
    Duration::from_micros(u64::try_from(length).unwrap_or_default())
}

pub(super) fn length(seconds: f64) -> Duration {
    Duration::try_from_secs_f64(seconds.max(0.0)).unwrap_or(Duration::MAX)
}

/// If it is unknown when a transaction started: it is old if this many transactions began after it, or while old row versions pile
/// up, this many.
const MANY_SINCE: i64 = 1_000_000;
const MANY_SINCE_IF_THEY_PILE_UP: i64 = 1_000;
const MOST_SHOWN: usize = 3;
const LONGEST_IF_THEY_PILE_UP: Duration = Duration::from_secs(30);

struct Open {
    /// The description of the transaction; `end` is the SQL that ends it, or other advice.
    who: String,
    end: String,
    seconds: Option<f64>,
    since: i64,
    /// `idle`, or `standby` and `unused` (a slot) for what has no start time.
    kind: String,
    holds_rows: bool,
}

/// Advice, as an SQL string.
const STANDBY: &str = "'End the oldest query on that standby, or set hot_standby_feedback = off there.'";

pub(super) async fn transactions(session: &mut Session, longest: Duration, piles_up: bool) -> sqlx::Result<Finding> {
    let sql = format!(
        "SELECT format(CASE WHEN a.datname IS NULL THEN 'a standby of ' ELSE '' END || 'pid %s (%s)', a.pid, \
             concat_ws(', ', coalesce(a.usename::text, ''), nullif(a.application_name, ''), nullif(a.state, ''))), \
           CASE WHEN a.datname IS NULL THEN {STANDBY} ELSE format('SELECT pg_terminate_backend(%s);', a.pid) END, \
           date_part('epoch', clock_timestamp() - a.xact_start), \
           coalesce(age(coalesce(a.backend_xmin, a.backend_xid)), 0)::bigint, \
           CASE WHEN a.datname IS NULL THEN 'standby' WHEN a.state LIKE 'idle in transaction%' THEN 'idle' ELSE '' END, \
           EXISTS (SELECT FROM {} JOIN pg_locks AS l ON l.relation = c.oid AND c.relname = 'rate_limits' \
             WHERE l.pid = a.pid AND l.database = a.datid AND l.mode = 'RowExclusiveLock') \
         FROM pg_stat_activity AS a \
         WHERE (a.datname = current_database() OR a.datname IS NULL AND a.pid IN (SELECT w.pid FROM pg_stat_replication AS w)) \
           AND a.pid <> pg_backend_pid() \
           AND coalesce(a.backend_type, '') <> 'autovacuum worker' \
           AND (a.xact_start IS NOT NULL OR a.backend_xmin IS NOT NULL OR a.backend_xid IS NOT NULL) \
         UNION ALL \
         SELECT format('the prepared transaction ''%s'' of %s', p.gid, p.owner), \
           format('ROLLBACK PREPARED ''%s'';', replace(p.gid, '''', '''''')), \
           date_part('epoch', clock_timestamp() - p.prepared), age(p.transaction)::bigint, '', false \
         FROM pg_prepared_xacts AS p WHERE p.database = current_database() \
         UNION ALL \
         SELECT format('the %s replication slot ''%s''', CASE WHEN s.active THEN 'active' ELSE 'inactive' END, s.slot_name), \
           CASE WHEN s.active THEN {STANDBY} \
             ELSE format('Start its standby, or drop the slot: SELECT pg_drop_replication_slot(%L);', s.slot_name) END, \
           NULL, age(s.xmin)::bigint, CASE WHEN s.active THEN 'standby' ELSE 'unused' END, false \
         FROM pg_replication_slots AS s WHERE s.xmin IS NOT NULL \
         ORDER BY 3 DESC NULLS LAST, 4 DESC",
        session.relations
    );
    let mut open = Vec::new();
    for (who, end, seconds, since, kind, holds_rows) in session.rows::<(String, String, _, _, _, _)>(&sql).await? {
        open.push(Open { who: one_line(&who), end: one_line(&end), seconds, since, kind, holds_rows });
    }
    Ok(judge_open(&open, longest, piles_up))
}

fn judge_open(open: &[Open], longest: Duration, piles_up: bool) -> Finding {
    let (longest, since, consequence) = if piles_up {
        let pile_up = "old row versions of hot keys pile up, and decisions on these keys take longer and longer";
        (longest.min(LONGEST_IF_THEY_PILE_UP), MANY_SINCE_IF_THEY_PILE_UP, pile_up)
    } else {
        (longest, MANY_SINCE, "no dead row can be removed, and every decision gets slower")
    };
    let is_old = |one: &&Open| match one.seconds {
        Some(seconds) => length(seconds) >= longest,
        None => one.since >= since || (piles_up && one.kind == "unused"),
    };
    let old: Vec<&Open> = open.iter().filter(is_old).collect();
    let Some(oldest) = old.first() else {
        let count = open.iter().filter(|one| one.seconds.is_none() && one.kind.is_empty()).count();
        let hidden = if count == 0 { String::new() } else { format!("; the age of {count} is hidden from this role") };
        return Finding::ok(format!("none has been open for {} or longer{hidden}", pg_limiter::Length::from(longest)));
    };
    let described = |one: &&Open| {
        let time = one.seconds.map(length).map_or_else(|| format!("{} transactions", count(one.since)), age);
        let rows = if one.holds_rows { ", with rows of rate_limits locked" } else { "" };
        format!("{} for {time}{rows}", one.who)
    };
    let more = if old.len() > MOST_SHOWN { format!(", and {} more", old.len() - MOST_SHOWN) } else { String::new() };
    let names = old.iter().take(MOST_SHOWN).map(described).collect::<Vec<_>>().join("; ");
    let finding = Finding::warning(format!("open: {names}{more}"))
        .advise(format!("Until it ends, {consequence}. End it:"))
        .advise(oldest.end.as_str());
    if !old.iter().any(|one| one.kind == "idle") {
        return finding;
    }
    finding.advise("ALTER ROLE app_role SET idle_in_transaction_session_timeout = '1min'; -- ends idle transactions")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::operate::doctor::State::{self, Note, Ok, Warning};

    #[test]
    fn dead_rows_and_updates_that_are_not_hot_are_reported() {
        let table = || Table { options: "fillfactor=70".to_owned(), live: 100, dead: 50, ..Table::default() };
        assert_eq!([table().size().state, table().updates().state], [Ok, Ok]);
        let state = |dead, live| Table { dead, live, ..table() }.size().state;
        let states = [state(10_000, 5), state(10_001, 5), state(50_000, 60_000), state(60_001, 60_000)];
        assert_eq!(states, [Ok, Warning, Ok, Warning]);
        let state = |updates, in_place| -> State { Table { updates, in_place, ..table() }.updates().state };
        assert_eq!([state(9_999, 0), state(10_000, 9_000), state(10_000, 8_999)], [Ok, Ok, Warning]);
        let finding = |dead| Table { updates: 10_000, in_place: 8_999, dead, ..table() }.updates();
        assert_eq!(finding(50).found, "89 % of 10,000 updates were made in place (HOT), at fillfactor 70");
        // While old versions are kept, no fillfactor helps.
        assert_eq!([50, 1_000].map(|dead| finding(dead).advice.concat().contains("VACUUM FULL")), [true, false]);
        assert_eq!(Table { options: String::new(), ..table() }.updates().state, Note);
    }

    #[test]
    fn sizes_are_short() {
        let sizes = [0, 8192, 10_240, 1_048_575, 1_048_576, 5 << 40, i64::MAX].map(bytes);
        assert_eq!(sizes, ["0.0 kB", "8.0 kB", "10 kB", "1024 kB", "1.0 MB", "5.0 TB", "8388608 TB"]);
    }

    #[test]
    fn many_idle_rows_are_a_warning_if_they_are_half_of_the_table() {
        let state = |rows, idle| judge_idle("", rows, idle).state;
        assert_eq!([state(0.0, 0.0), state(9_999.0, 9_999.0), state(10_000.0, 10_000.0)], [Ok, Ok, Warning]);
        assert_eq!([state(40_001.0, 20_000.0), state(40_000.0, 20_000.0)], [Ok, Warning]);
    }

    fn open(seconds: Option<f64>, since: i64) -> Open {
        let (who, end) = ("pid 7".to_owned(), "end".to_owned());
        Open { who, end, seconds, since, kind: String::new(), holds_rows: false }
    }

    #[test]
    fn without_a_start_time_the_age_is_judged_by_later_transactions() {
        let judge = |one| judge_open(&[one], Duration::from_secs(60), false);
        assert_eq!([judge(open(Some(59.9), 5_000_000)).state, judge(open(Some(60.0), 0)).state], [Ok, Warning]);
        assert_eq!([judge(open(None, 999_999)).state, judge(open(None, 1_000_000)).state], [Ok, Warning]);
        assert_eq!(judge(open(Some(3600.0), 3)).found, "open: pid 7 for 1h");
    }

    #[test]
    fn while_versions_pile_up_30_seconds_or_1000_transactions_are_too_long() {
        let state = |seconds, longest| judge_open(&[open(Some(seconds), 0)], Duration::from_secs(longest), true).state;
        assert_eq!([state(29.9, 300), state(30.0, 300)], [Ok, Warning]);
        assert_eq!([state(9.9, 10), state(10.0, 10)], [Ok, Warning]);
        let state = |one| judge_open(&[one], Duration::from_secs(60), true).state;
        assert_eq!([state(open(None, 999)), state(open(None, 1_000))], [Ok, Warning]);
        assert_eq!(state(Open { kind: "unused".to_owned(), ..open(None, 1) }), Warning);
    }
}
