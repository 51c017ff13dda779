//! A role that does not own the schema, and objects that it could create before the owner migrates.

use pg_limiter::sqlx::{self, AssertSqlSafe, Connection, PgConnection};

use crate::support::Database;

/// Another role in a test's database.
pub struct OtherRole<'d> {
    database: &'d Database,
    pub name: String,
}

impl<'d> OtherRole<'d> {
    pub async fn new(database: &'d Database) -> Self {
        let name = format!("mallory_of_{}", database.name);
        database
            .execute(&format!(
                "DROP ROLE IF EXISTS {name}; CREATE ROLE {name}; CREATE SCHEMA IF NOT EXISTS rate_limit;
                 GRANT USAGE, CREATE ON SCHEMA rate_limit, public TO {name}"
            ))
            .await;
        Self { database, name }
    }

    pub async fn does(&self, sql: &str) {
        self.database.execute(&format!("SET ROLE {}; {sql}; RESET ROLE", self.name)).await;
    }

    pub async fn connection(&self) -> PgConnection {
        let mut connection = PgConnection::connect(&self.database.url).await.expect("a connection");
        let set = AssertSqlSafe(format!("SET ROLE {}", self.name));
        sqlx::raw_sql(set).execute(&mut connection).await.expect("set role");
        connection
    }

    pub async fn drop(self) {
        self.database.execute(&format!("DROP OWNED BY {0} CASCADE; DROP ROLE {0}", self.name)).await;
    }
}

/// A function that makes its owner a superuser when a superuser calls it.
const TRAP: &str = "CREATE FUNCTION trap() RETURNS trigger LANGUAGE plpgsql AS
    $$ BEGIN EXECUTE format('ALTER ROLE %I SUPERUSER', (SELECT proowner::regrole::text FROM pg_proc WHERE proname = 'trap')); RETURN NEW; END $$";

/// SQL that creates an object under one of the limiter's names, and the problem that `migrate` reports.
pub fn objects_in_the_way() -> [(String, &'static str); 4] {
    let history = "CREATE TABLE rate_limit.migrations (version integer, name text, sha256 text NOT NULL, crate_version text NOT NULL,
        breaking boolean NOT NULL DEFAULT false, applied_at timestamptz NOT NULL DEFAULT now(), PRIMARY KEY (version, name))";
    let trapped = format!(
        "{history}; {TRAP}; CREATE TRIGGER trap BEFORE INSERT ON rate_limit.migrations FOR EACH ROW EXECUTE FUNCTION trap()"
    );
    let a_view = "CREATE VIEW rate_limit.migrations AS SELECT 1 AS version, 'a' AS name";
    let clock = "CREATE FUNCTION rate_limit._clock() RETURNS bigint LANGUAGE sql AS 'SELECT 0::bigint'";
    let table =
        "CREATE TABLE rate_limit.rate_limits (name text, key text, shard int, shards int, value float8, ts bigint, idle_at bigint,
        detail float8[])";
    [
        (trapped, "the relation migrations belongs to the role"),
        (a_view.to_owned(), "the relation migrations belongs to the role"),
        (clock.to_owned(), "_clock() belongs to the role"),
        (table.to_owned(), "the relation rate_limits belongs to the role"),
    ]
}
