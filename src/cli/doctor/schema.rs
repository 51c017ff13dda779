//! The limiter's tables and functions: are they there, and of which version.

use std::collections::{BTreeMap, BTreeSet};

use sqlx::Row;

use crate::Schema;
use crate::cli::doctor::finding::Finding;
use crate::cli::doctor::session::Session;
use crate::migrate::{NEWEST, migrations};

const HISTORY: &str = "rate_limits_migrations";

/// What is there.
#[derive(Debug, Default)]
pub(super) struct Objects {
    relations: BTreeSet<String>,
    functions: BTreeMap<String, usize>,
}

impl Objects {
    pub(super) async fn read(session: &mut Session) -> Result<Self, sqlx::Error> {
        let schema = session.schema_literal();
        let sql = format!(
            "SELECT c.relname::text, 0::bigint FROM pg_class AS c JOIN pg_namespace AS n ON n.oid = c.relnamespace \
             WHERE n.nspname = {schema} AND c.relkind IN ('r', 'v', 'p') AND c.relname LIKE 'rate\\_limit%' \
             UNION ALL \
             SELECT p.proname::text, count(*) FROM pg_proc AS p JOIN pg_namespace AS n ON n.oid = p.pronamespace \
             WHERE n.nspname = {schema} AND p.proname LIKE 'rate\\_limit%' GROUP BY p.proname"
        );
        let mut objects = Self::default();
        for row in session.rows(&sql).await? {
            match row.try_get::<i64, _>(1)? {
                0 => _ = objects.relations.insert(row.try_get(0)?),
                count => _ = objects.functions.insert(row.try_get(0)?, usize::try_from(count).unwrap_or_default()),
            }
        }
        Ok(objects)
    }

    /// As the migrations up to this version make them.
    fn expected(version: i32) -> Self {
        let mut objects = Self::default();
        for migration in migrations(&Schema::default()).iter().filter(|migration| migration.version <= version) {
            for relation in ["CREATE TABLE IF NOT EXISTS public.", "CREATE OR REPLACE VIEW public."] {
                objects.relations.extend(names(&migration.sql, relation));
            }
            for name in names(&migration.sql, "CREATE OR REPLACE FUNCTION public.") {
                *objects.functions.entry(name).or_default() += 1;
            }
        }
        objects
    }

    pub(super) fn has_table(&self, name: &str) -> bool {
        self.relations.contains(name)
    }

    fn missing(&self, version: i32) -> Vec<String> {
        let expected = Self::expected(version);
        let relations = expected.relations.difference(&self.relations).cloned();
        let there = |name: &String| self.functions.get(name).copied().unwrap_or_default();
        let functions = expected.functions.iter().filter(|(name, count)| there(name) < **count);
        relations.chain(functions.map(|(name, _)| format!("{name}()"))).collect()
    }
}

fn names(sql: &str, create: &str) -> Vec<String> {
    let name = |rest: &str| rest.chars().take_while(|c| c.is_ascii_alphanumeric() || *c == '_').collect();
    sql.split(create).skip(1).map(name).collect()
}

pub(super) async fn version(session: &mut Session, objects: &Objects) -> Result<(Option<i32>, Finding), sqlx::Error> {
    let schema = session.schema.clone();
    let migrate = if schema.name() == "public" {
        "Run pg-limiter migrate".to_owned()
    } else {
        format!("Run pg-limiter migrate --schema '{}'", schema.name().replace('\'', "'\\''"))
    };
    if !objects.has_table("rate_limits") {
        let found = format!("the schema \"{schema}\" has no tables of the limiter; what is in them was not looked at");
        return Ok((None, Finding::problem(found).advise(format!("{migrate}, or name another schema with --schema."))));
    }
    if !objects.has_table(HISTORY) {
        let found = format!(
            "the schema \"{schema}\" was not migrated by pg-limiter, but by printed SQL: its version is not known"
        );
        return Ok((None, Finding::note(found)));
    }
    let sql = format!("SELECT coalesce(max(version), 0) FROM {}", session.table(HISTORY));
    let version: i32 = session.row(&sql).await?.try_get(0)?;
    let found = format!("the schema \"{schema}\" is at version {version}");
    let finding = if version < NEWEST {
        Finding::warning(format!("{found}, the newest is {NEWEST}")).advise(format!("{migrate}."))
    } else if version > NEWEST {
        Finding::warning(format!("{found}, and this release knows versions up to {NEWEST}"))
            .advise("Update pg-limiter.")
    } else {
        Finding::ok(format!("{found}, the newest"))
    };
    Ok((Some(version), finding))
}

pub(super) fn complete(objects: &Objects, version: Option<i32>) -> Finding {
    let version = version.unwrap_or(NEWEST).min(NEWEST);
    let missing = objects.missing(version);
    if missing.is_empty() {
        let count: usize = Objects::expected(version).functions.values().sum();
        return Finding::ok(format!("all {count} functions are there"));
    }
    Finding::problem(format!("missing: {}", missing.join(", ")))
        .advise(
            "Run pg-limiter migrate --print | psql --single-transaction, with this --schema: it makes what is missing.",
        )
        .advise("Then grant what was granted before.")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_should_be_there_is_read_from_the_migrations() {
        let first = Objects::expected(1);
        assert_eq!(first.functions.get("rate_limit_reset"), Some(&2));
        assert_eq!(first.functions.get("rate_limit_decide"), Some(&1));
        assert!(first.has_table("rate_limits") && first.has_table("rate_limits_seen"));
        assert!(!first.has_table("rate_limit_jobs") && !first.functions.contains_key("rate_limit_enqueue"));
        let all = Objects::expected(NEWEST);
        assert!(all.has_table("rate_limit_jobs") && all.functions.contains_key("rate_limit_ring"));
        assert_eq!(first.missing(1), [""; 0]);
        assert!(first.missing(2).contains(&"rate_limit_enqueue()".to_owned()));
    }
}
