//! The owners of the objects: after a restore, with several owners, and as logins come and go.

use pg_limiter::migrate::{Contents, Drift, MigrateError, Migrator, Part, script, uninstall};
use pg_limiter::sqlx::{self, AssertSqlSafe, Connection, PgConnection};
use pg_limiter::{Limit, Limits, Schema, TransactionLimiter};

use crate::statistics::OwnServer;
use crate::support::Database;

/// A role of a test, and a connection that has become it.
struct As<'d> {
    database: &'d Database,
    name: String,
    conn: PgConnection,
}

impl<'d> As<'d> {
    async fn new(database: &'d Database, name: &str, grants: &str) -> Self {
        let name = format!("{name}_of_{}", database.name);
        database.execute(&format!("CREATE ROLE {name}; {}", grants.replace("{name}", &name))).await;
        let mut conn = PgConnection::connect(&database.url).await.expect("a connection");
        sqlx::raw_sql(AssertSqlSafe(format!("SET ROLE {name}"))).execute(&mut conn).await.expect("set role");
        Self { database, name, conn }
    }

    async fn migrate(&mut self) -> Result<usize, MigrateError> {
        Migrator::default().run_on(&mut self.conn).await.map(|report| report.functions.len())
    }

    async fn check(&mut self) -> Vec<Drift> {
        Migrator::default().check_on(&mut self.conn).await.expect("checked")
    }

    async fn can_limit(&mut self) -> bool {
        let limits = Limits::new().define("a", Limit::token_bucket(100, std::time::Duration::from_secs(1)));
        let limits = TransactionLimiter::new(limits.expect("limits"));
        let mut tx = self.conn.begin().await.expect("begin");
        let decided = limits.within(&mut tx).limit(("a", "k")).await.is_ok();
        tx.rollback().await.expect("rollback");
        decided
    }

    async fn drop(self) {
        self.conn.close().await.expect("close");
        self.database.execute(&format!("DROP OWNED BY {0} CASCADE; DROP ROLE {0}", self.name)).await;
    }
}

const MAY_CREATE: &str =
    "DO $$ BEGIN EXECUTE format('GRANT CREATE ON DATABASE %I TO {name}', current_database()); END $$";

/// Gives the schema and its objects to the superuser, as a restore without owners and privileges does.
const RESTORED: &str = "DO $$
DECLARE
  to_alter record;
BEGIN
  EXECUTE format('ALTER SCHEMA rate_limit OWNER TO %I', session_user);
  FOR to_alter IN
    SELECT CASE relkind WHEN 'v' THEN 'VIEW' ELSE 'TABLE' END AS kind, oid::regclass::text AS named FROM pg_class
    WHERE relnamespace = 'rate_limit'::regnamespace AND relkind IN ('r', 'v')
    UNION ALL
    SELECT 'FUNCTION', oid::regprocedure::text FROM pg_proc WHERE pronamespace = 'rate_limit'::regnamespace
  LOOP
    EXECUTE format('ALTER %s %s OWNER TO %I', to_alter.kind, to_alter.named, session_user);
  END LOOP;
END $$";

async fn owners(database: &Database) -> Vec<String> {
    let sql = "SELECT DISTINCT o::regrole::text FROM (
         SELECT relowner FROM pg_class WHERE relnamespace = 'rate_limit'::regnamespace
         UNION SELECT proowner FROM pg_proc WHERE pronamespace = 'rate_limit'::regnamespace) AS x (o)";
    sqlx::query_scalar(sql).fetch_all(&database.pool).await.expect("the owners")
}

/// Every call of the role that has migrated fails. The statements of the message mend it, and keep the balances.
#[tokio::test]
async fn after_a_restore_by_a_superuser_the_statements_that_mend_it_are_printed() {
    let database = Database::empty().await;
    let mut app = As::new(&database, "app", MAY_CREATE).await;
    app.migrate().await.expect("migrated");
    database
        .execute("SELECT rate_limit.limit_with('a', 'k', kind => 'token_bucket', rate => 10, period => '1 hour')")
        .await;
    database.execute(RESTORED).await;
    assert!(!app.can_limit().await);
    // The role that migrated can no longer read that it is the owner: the objects could belong to a role of which it is a member.
    let drift = app.check().await;
    let [Drift::Misowned { problem, statements }] = &drift[..] else { panic!("{drift:?}") };
    assert!(statements.is_empty() && problem.contains("let postgres or a superuser run"), "{problem}: {statements:?}");
    let text = drift[0].to_string() + &app.migrate().await.expect_err("refused").to_string();
    assert!(!text.contains("ALTER") && !text.contains("run: "), "{text}");
    let drift = Migrator::default().check(&database.pool).await.expect("checked");
    let [Drift::Misowned { problem, statements }] = &drift[..] else { panic!("{drift:?}") };
    assert!(problem.contains(&app.name) && problem.contains("restore"), "{problem}");
    // Also if there is something to do.
    for change in ["SELECT 1", "ALTER FUNCTION rate_limit._held STABLE"] {
        database.execute(change).await;
        let error = Migrator::default().run(&database.pool).await.expect_err("refused");
        let MigrateError::Misowned { statements: again, .. } = &error else { panic!("{error}") };
        assert_eq!(again, statements);
        let text = error.to_string();
        assert!(text.contains("ALTER ") && !text.contains("remove") && !text.contains("DROP"), "{text}");
    }
    database.execute(&statements.join("\n")).await;
    assert_eq!(owners(&database).await, [app.name.as_str()]);
    assert_eq!(app.migrate().await.expect("migrated"), 1);
    assert_eq!(app.check().await, []);
    assert!(app.can_limit().await);
    let kept: i64 = sqlx::query_scalar("SELECT count(*) FROM rate_limit.rate_limits WHERE name = 'a'")
        .fetch_one(&database.pool)
        .await
        .expect("a count");
    assert_eq!(kept, 1);
    app.drop().await;
}

#[tokio::test]
async fn objects_of_two_owners_are_reported_although_nothing_is_to_be_done() {
    let database = Database::empty().await;
    let mut app = As::new(&database, "app", MAY_CREATE).await;
    app.migrate().await.expect("migrated");
    for object in ["FUNCTION rate_limit._held", "TABLE rate_limit.rate_limits", "FUNCTION rate_limit.reset(text, text)"]
    {
        database.execute(&format!("ALTER {object} OWNER TO session_user")).await;
        let error = app.migrate().await.expect_err("refused");
        let MigrateError::Misowned { statements, .. } = &error else { panic!("{error}") };
        assert_eq!(statements, &[format!("ALTER {object} OWNER TO \"{}\";", app.name)]);
        assert!(matches!(&app.check().await[..], [Drift::Misowned { .. }]));
        database.execute(&statements.join("\n")).await;
        assert_eq!(app.migrate().await.expect("nothing to do"), 0);
    }
    app.drop().await;
}

/// In a schema of the application, a function of another role may have the name of one of the limiter's.
#[tokio::test]
async fn functions_of_the_application_may_have_another_owner() {
    let database = Database::empty().await;
    let migrator = Migrator::new(Schema::new("public").expect("a schema"));
    migrator.run(&database.pool).await.expect("migrated");
    let other = As::new(&database, "other", "SELECT 1").await;
    let function = "CREATE FUNCTION public.block(integer) RETURNS integer LANGUAGE sql AS 'SELECT 1'";
    database.execute(&format!("{function}; ALTER FUNCTION public.block(integer) OWNER TO {}", other.name)).await;
    assert_eq!(migrator.run(&database.pool).await.expect("nothing to do").functions, [""; 0]);
    // The statements name the right one of the two.
    database.execute(&format!("ALTER FUNCTION public.block(text, text, interval) OWNER TO {}", other.name)).await;
    let error = migrator.run(&database.pool).await.expect_err("refused");
    let MigrateError::Misowned { statements, .. } = &error else { panic!("{error}") };
    assert!(statements.len() == 1 && statements[0].contains("block(text, text, interval) OWNER"), "{statements:?}");
    database.execute(&statements.join("\n")).await;
    migrator.run(&database.pool).await.expect("nothing to do");
    other.drop().await;
}

/// A refusal in a transaction that was begun as a statement leaves no setting behind.
#[tokio::test]
async fn a_refusal_in_a_raw_transaction_changes_no_setting() {
    let database = Database::empty().await;
    let owner = As::new(&database, "owner", "CREATE SCHEMA rate_limit AUTHORIZATION {name}").await;
    let mut login = As::new(&database, "login", &format!("GRANT {} TO {{name}}", owner.name)).await;
    login.migrate().await.expect("migrated");
    database.execute("ALTER FUNCTION rate_limit._held OWNER TO session_user").await;
    sqlx::raw_sql("BEGIN").execute(&mut login.conn).await.expect("begin");
    assert!(matches!(login.migrate().await, Err(MigrateError::Misowned { .. })));
    let settings: (String, String, String) =
        sqlx::query_as("SELECT current_user::text, current_setting('lock_timeout'), current_setting('search_path')")
            .fetch_one(&mut login.conn)
            .await
            .expect("the transaction goes on");
    assert_eq!(settings, (login.name.clone(), "0".into(), "\"$user\", public".into()));
    sqlx::raw_sql("ROLLBACK").execute(&mut login.conn).await.expect("rollback");
    for role in [login, owner] {
        role.drop().await;
    }
}

/// An administrator gives all objects to another role. Roles with grants go on, and the new owner migrates.
#[tokio::test]
async fn all_objects_can_change_hands() {
    let database = Database::empty().await;
    let mut app = As::new(&database, "app", MAY_CREATE).await;
    app.migrate().await.expect("migrated");
    let granted = "GRANT USAGE ON SCHEMA rate_limit TO {name};
         GRANT EXECUTE ON ALL FUNCTIONS IN SCHEMA rate_limit TO {name}";
    let mut caller = As::new(&database, "caller", granted).await;
    let mut heir = As::new(&database, "heir", "SELECT 1").await;
    let give = RESTORED.replace("session_user", &format!("'{}'", heir.name));
    database.execute(&give).await;
    assert_eq!(caller.migrate().await.expect("nothing to do"), 0);
    assert_eq!(caller.check().await, []);
    assert!(caller.can_limit().await);
    assert!(matches!(app.migrate().await, Err(MigrateError::Misowned { .. })), "it can call nothing");
    database.execute("ALTER FUNCTION rate_limit._held STABLE").await;
    let error = caller.migrate().await.expect_err("refused");
    assert!(matches!(&error, MigrateError::NotOwner { owner, .. } if *owner == heir.name), "{error}");
    assert_eq!(heir.migrate().await.expect("migrated"), 1);
    // From now on, this is the owner: a role that may use the schema finds nothing to do.
    database.execute(&format!("GRANT USAGE ON SCHEMA rate_limit TO {}", app.name)).await;
    assert_eq!(app.migrate().await.expect("nothing to do"), 0);
    for role in [app, caller, heir] {
        role.drop().await;
    }
}

/// A superuser gives all objects to another one, as a restore does where another role is the superuser.
#[tokio::test]
async fn another_superuser_may_own_all_objects() {
    let database = Database::migrated().await;
    let mut heir = As::new(&database, "heir", "ALTER ROLE {name} SUPERUSER").await;
    database.execute(&RESTORED.replace("session_user", &format!("'{}'", heir.name))).await;
    assert_eq!(heir.check().await, []);
    assert_eq!(heir.migrate().await.expect("nothing to do"), 0);
    database.execute(&RESTORED.replace("session_user", "'postgres'")).await;
    heir.drop().await;
}

/// The objects belong to the owner of the schema, whichever of its members migrates.
#[tokio::test]
async fn logins_come_and_go() {
    let database = Database::empty().await;
    let owner = As::new(&database, "owner", "CREATE SCHEMA rate_limit AUTHORIZATION {name}").await;
    let member = format!("GRANT {} TO {{name}}", owner.name);
    for change in ["SELECT 1", "ALTER FUNCTION rate_limit._held STABLE", "ALTER FUNCTION rate_limit._names VOLATILE"] {
        let mut login = As::new(&database, "login", &member).await;
        login.migrate().await.expect("migrated");
        database.execute(change).await;
        login.migrate().await.expect("migrated");
        let role: String =
            sqlx::query_scalar("SELECT current_user::text").fetch_one(&mut login.conn).await.expect("a role");
        assert_eq!(role, login.name, "no setting is left behind");
        assert_eq!(login.check().await, []);
        assert_eq!(owners(&database).await, [owner.name.as_str()]);
        login.drop().await;
    }
    owner.drop().await;
}

/// A login that does not inherit the rights of the schema's owner is a member nevertheless: after a migration, all is well.
#[tokio::test]
async fn a_member_that_inherits_nothing_finds_no_difference() {
    let database = Database::empty().await;
    let owner = As::new(&database, "owner", "CREATE SCHEMA rate_limit AUTHORIZATION {name}").await;
    let member = format!("ALTER ROLE {{name}} NOINHERIT; GRANT {} TO {{name}}", owner.name);
    let mut login = As::new(&database, "login", &member).await;
    login.migrate().await.expect("migrated");
    assert_eq!(login.check().await, []);
    assert_eq!(login.migrate().await.expect("nothing to do"), 0);
    login.drop().await;
    owner.drop().await;
}

/// From PostgreSQL 16 on, a member may have the rights of the owner, and may not become it: its objects would have two owners.
#[tokio::test]
async fn a_member_that_cannot_become_the_owner_is_refused() {
    let database = Database::empty().await;
    let is_newer = "SELECT current_setting('server_version_num')::integer >= 160000";
    if !sqlx::query_scalar::<_, bool>(is_newer).fetch_one(&database.pool).await.expect("a version") {
        return;
    }
    let mut owner = As::new(&database, "owner", MAY_CREATE).await;
    owner.migrate().await.expect("migrated");
    let member = format!("GRANT {} TO {{name}} WITH INHERIT TRUE, SET FALSE", owner.name);
    let mut login = As::new(&database, "login", &member).await;
    database.execute("DROP FUNCTION rate_limit._held").await; // As before an upgrade with a new function.
    let error = login.migrate().await.expect_err("refused");
    let is_refused = matches!(&error, MigrateError::NotOwner { owner: of, .. } if *of == owner.name);
    assert!(is_refused && error.to_string().contains("SET ROLE"), "{error}");
    assert_eq!(owner.migrate().await.expect("migrated"), 1);
    assert_eq!(owners(&database).await, [owner.name.as_str()]);
    login.drop().await;
    owner.drop().await;
}

/// The printed SQL makes objects of the owner, too, and leaves no setting behind.
#[tokio::test]
async fn the_printed_sql_becomes_the_owner() {
    let database = Database::empty().await;
    let owner = As::new(&database, "owner", "CREATE SCHEMA rate_limit AUTHORIZATION {name}").await;
    let mut login = As::new(&database, "login", &format!("GRANT {} TO {{name}}", owner.name)).await;
    let printed = script(&Schema::default(), Contents::All, Part::ALL);
    let states = "SELECT current_user::text || current_setting('search_path') || current_setting('lock_timeout')";
    let state: String = sqlx::query_scalar(states).fetch_one(&mut login.conn).await.expect("settings");
    for change in ["SELECT 1", "DROP FUNCTION rate_limit._held"] {
        sqlx::raw_sql(AssertSqlSafe(printed.clone())).execute(&mut login.conn).await.expect("migrated");
        assert_eq!(owners(&database).await, [owner.name.as_str()]);
        let after: String = sqlx::query_scalar(states).fetch_one(&mut login.conn).await.expect("settings");
        assert_eq!(after, state);
        assert_eq!(login.check().await, []);
        database.execute(change).await;
    }
    login.drop().await;
    owner.drop().await;
}

/// For a role without rights, the message names the grants first: the owner of the objects may be right.
#[tokio::test]
async fn a_role_that_lacks_grants_is_told_of_them() {
    let database = Database::empty().await;
    let mut owner = As::new(&database, "owner", MAY_CREATE).await;
    owner.migrate().await.expect("migrated");
    let mut app = As::new(&database, "app", "SELECT 1").await;
    let error = app.migrate().await.expect_err("refused");
    assert!(error.to_string().contains(&format!("if {} is right, grant {}", owner.name, app.name)), "{error}");
    app.drop().await;
    owner.drop().await;
}

/// An event trigger, or an administrator, may turn on row level security, which does not apply to the owner.
#[tokio::test]
async fn row_level_security_is_the_only_difference_that_it_makes() {
    let database = Database::empty().await;
    let mut owner = As::new(&database, "owner", MAY_CREATE).await;
    owner.migrate().await.expect("migrated");
    for table in ["migrations", "objects", "jobs", "rate_limits"] {
        database.execute(&format!("ALTER TABLE rate_limit.{table} ENABLE ROW LEVEL SECURITY")).await;
    }
    let drift = owner.check().await;
    let is_of_it =
        |drift: &Drift| matches!(drift, Drift::ObjectChanged { found, .. } if found == "table ROW LEVEL SECURITY");
    assert!(drift.len() == 4 && drift.iter().all(is_of_it), "{drift:?}");
    assert_eq!(owner.migrate().await.expect("nothing to do"), 0);
    assert!(owner.can_limit().await);
    owner.drop().await;
}

/// A restore without privileges takes every role's right to read the records, by which clients know whether they can work.
#[tokio::test]
async fn migrate_shows_the_records_again() {
    let database = Database::empty().await;
    let mut app = As::new(&database, "app", MAY_CREATE).await;
    app.migrate().await.expect("migrated");
    database.execute("REVOKE SELECT ON rate_limit.migrations, rate_limit.objects FROM PUBLIC").await;
    assert_eq!(app.check().await, [Drift::RecordsHidden]);
    assert_eq!(app.migrate().await.expect("migrated"), 0);
    assert_eq!(app.check().await, []);
    let mut other = As::new(&database, "other", "GRANT USAGE ON SCHEMA rate_limit TO {name}").await;
    assert_eq!(other.migrate().await.expect("nothing to do"), 0);
    for role in [other, app] {
        role.drop().await;
    }
}

/// The message has the statement, and the role that can run it.
#[tokio::test]
async fn missing_privileges_are_reported_with_the_grant() {
    let database = Database::empty().await;
    database.execute("CREATE SCHEMA \"Own schema\"").await;
    let migrator = Migrator::new(Schema::new("Own schema").expect("a schema"));
    for given in ["CREATE", "USAGE"] {
        let grants = format!("GRANT {given} ON SCHEMA \"Own schema\" TO {{name}}");
        let mut app = As::new(&database, "app", &grants).await;
        let error = migrator.run_on(&mut app.conn).await.expect_err("refused");
        assert!(matches!(error, MigrateError::Lacking { .. }), "{error}");
        let text = error.to_string();
        let (who, grant) = text.split_once("a superuser run: ").expect("a statement");
        assert!(who.contains("who owns it") && !grant.contains(given), "{text}");
        database.execute(grant).await;
        migrator.run_on(&mut app.conn).await.expect("the grant of the message is sufficient");
        app.drop().await;
    }
}

/// Functions of the application that call the limiter are named in a warning. Others, and the limiter's own, are not.
#[tokio::test]
async fn uninstalling_warns_of_functions_that_still_call_the_limiter() {
    for schema in [Schema::default(), Schema::new("public").expect("a schema")] {
        let server = OwnServer::logging(&[]).await;
        Migrator::new(schema.clone()).run(&server.pool).await.expect("migrated");
        let functions = format!(
            "CREATE SCHEMA app;
             CREATE FUNCTION app.limited() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
               PERFORM {schema}.enforce_with('a', NEW.author, 'token_bucket', 1, '1 s'); RETURN NEW; END $$;
             CREATE FUNCTION app.elsewhere() RETURNS void LANGUAGE plpgsql AS $$ BEGIN
               PERFORM my_{schema}.reset('a', 'k'), {schema}.resetting('a'); END $$;
             CREATE FUNCTION app.other() RETURNS integer LANGUAGE sql AS 'SELECT 1 /* {schema}.unrelated */'"
        );
        sqlx::raw_sql(AssertSqlSafe(functions)).execute(&server.pool).await.expect("functions");
        sqlx::raw_sql(AssertSqlSafe(uninstall(&schema))).execute(&server.pool).await.expect("uninstalled");
        let log = server.log().await;
        let warnings: Vec<_> = log.iter().filter(|line| line.contains("calls the rate limiter")).collect();
        assert!(matches!(&warnings[..], [one] if one.contains("the function app.limited()")), "{schema}: {warnings:?}");
    }
}
