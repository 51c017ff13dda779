use crate::sql::Schema;

/// One step of the schema's history, as SQL.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Migration {
    /// 1, 2, 3, ..
    pub version: i32,
    /// What it is about.
    pub name: &'static str,
    /// The SQL for the schema asked for: several statements, to be run in one transaction where the engine can.
    pub sql: String,
}

const ALL: [(i32, &str, &str); 3] = [
    (1, "rate_limits", include_str!("../../migrations/0001_rate_limits.sql")),
    (2, "queue", include_str!("../../migrations/0002_queue.sql")),
    (3, "answers", include_str!("../../migrations/0003_answers.sql")),
];

/// The newest version.
pub(crate) const NEWEST: i32 = ALL[ALL.len() - 1].0;

/// All migrations, oldest first, for this schema. They create objects in it, and do not create the schema itself.
///
/// ```
/// for migration in pg_limiter::migrate::migrations(&pg_limiter::Schema::default()) {
///     println!("-- {:04}_{}\n{}", migration.version, migration.name, migration.sql);
/// }
/// ```
pub fn migrations(schema: &Schema) -> Vec<Migration> {
    let qualifier = format!("{}.", schema.quoted());
    let render = |&(version, name, sql): &(i32, &'static str, &str)| Migration {
        version,
        name,
        // In the files `public.` stands only where the schema is meant: a test sees to that.
        sql: if schema.name() == "public" { sql.to_owned() } else { sql.replace("public.", &qualifier) },
    };
    ALL.iter().map(render).collect()
}

/// The SQL that removes everything again, with all balances.
pub fn uninstall(schema: &Schema) -> String {
    include_str!("uninstall.sql").replace("public.", &format!("{}.", schema.quoted()))
}
