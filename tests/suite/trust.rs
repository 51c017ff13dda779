//! Migrating gives other roles no rights: objects of other roles that are in the way are rejected, and only the owner has rights
//! on new objects.

use pg_limiter::Schema;
use pg_limiter::migrate::{Contents, Drift, MigrateError, Migrator, Part, Use, migrate, migrate_on, script};
use pg_limiter::sqlx::{self, AssertSqlSafe, Connection};

use crate::support::other_role::{OtherRole, objects_in_the_way};
use crate::support::{Database, guide};

async fn is_superuser(database: &Database, role: &str) -> bool {
    let sql = "SELECT rolsuper FROM pg_roles WHERE rolname = $1";
    sqlx::query_scalar(sql).bind(role).fetch_one(&database.pool).await.expect("a role")
}

#[tokio::test(flavor = "multi_thread")]
async fn objects_of_another_role_are_rejected() {
    let schemas = ["rate_limit", "public"].map(|name| Schema::new(name).expect("a schema"));
    for ((put, problem), schema) in
        objects_in_the_way().iter().flat_map(|way| schemas.iter().map(move |schema| (way, schema)))
    {
        let put = put.replace("rate_limit.", &format!("{schema}."));
        let migrator = Migrator::new(schema.clone());
        let database = Database::empty().await;
        let other = OtherRole::new(&database).await;
        other.does(&put).await;
        // With and without its right to create objects.
        for revoke in [false, true] {
            if revoke {
                database.execute(&format!("REVOKE CREATE ON SCHEMA {schema} FROM {}", other.name)).await;
            }
            let error = migrator.run(&database.pool).await.expect_err("refused");
            let MigrateError::Untrusted { problems, .. } = &error else { panic!("{put}: {error}") };
            assert!(problems.iter().any(|found| found.contains(problem)), "{put}: {problems:?}");
            let text = error.to_string();
            assert!(text.contains("revoke CREATE") && text.contains("a schema of its own"), "{text}");
            let printed =
                sqlx::raw_sql(AssertSqlSafe(script(schema, Contents::All, Part::ALL))).execute(&database.pool).await;
            assert!(printed.expect_err("refused").to_string().contains("the schema is not safe"), "{put}");
        }
        assert!(!is_superuser(&database, &other.name).await, "{put}: the role has become a superuser");
        other.drop().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_schema_in_which_others_can_create_objects_is_rejected() {
    for schema in ["rate_limit", "public"] {
        is_rejected(schema).await;
    }
}

async fn is_rejected(schema: &str) {
    let database = Database::empty().await;
    let other = OtherRole::new(&database).await;
    let migrator = Migrator::new(Schema::new(schema).expect("a schema"));
    let error = migrator.run(&database.pool).await.expect_err("refused");
    let problem = format!("the role {} can create objects in it", other.name);
    assert!(matches!(&error, MigrateError::Untrusted { problems, .. } if problems == &[problem]), "{error}");
    // The default up to PostgreSQL 14.
    database
        .execute(&format!(
            "REVOKE CREATE ON SCHEMA {schema} FROM {}; GRANT CREATE ON SCHEMA {schema} TO PUBLIC",
            other.name
        ))
        .await;
    let error = migrator.run(&database.pool).await.expect_err("refused");
    assert!(error.to_string().contains("every role can create objects in it"), "{error}");
    // Both solutions work.
    Migrator::new(Schema::new("limits").expect("a schema")).run(&database.pool).await.expect("a schema of its own");
    database.execute(&format!("REVOKE CREATE ON SCHEMA {schema} FROM PUBLIC")).await;
    migrator.run(&database.pool).await.expect("migrated");

    // A later change to the schema's privileges is reported, and a migration that has something to do rejects it.
    database.execute(&format!("GRANT CREATE ON SCHEMA {schema} TO PUBLIC")).await;
    assert_eq!(migrator.run(&database.pool).await.expect("nothing to do").functions, [""; 0]);
    database.execute(&format!("ALTER FUNCTION {schema}._held STABLE")).await;
    assert!(matches!(migrator.run(&database.pool).await, Err(MigrateError::Untrusted { .. })));
    other.drop().await;
}

/// A role that may create triggers could make the owner run them.
#[tokio::test]
async fn triggers_and_rules_of_others_are_rejected() {
    let database = Database::migrated().await;
    for (make, drop) in [
        (
            "CREATE FUNCTION mine() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RETURN NEW; END $$;
             CREATE TRIGGER mine BEFORE INSERT ON rate_limit.rate_limits FOR EACH ROW EXECUTE FUNCTION mine()",
            "DROP TRIGGER mine ON rate_limit.rate_limits",
        ),
        (
            "CREATE RULE mine AS ON INSERT TO rate_limit.rate_limits DO INSTEAD NOTHING",
            "DROP RULE mine ON rate_limit.rate_limits",
        ),
    ] {
        database.execute(make).await;
        let drift = Migrator::default().check(&database.pool).await.expect("checked");
        let [Drift::Attached { problem, statement }] = &drift[..] else { panic!("{drift:?}") };
        assert!(problem.contains("the relation rate_limits has the "), "{problem}");
        assert_eq!(*statement, format!("{drop};"));
        let printed = sqlx::raw_sql(AssertSqlSafe(script(&Schema::default(), Contents::All, Part::ALL)));
        let refused = printed.execute(&database.pool).await.expect_err("refused").to_string();
        assert!(refused.contains(drop), "{refused}");
        // Also if there is nothing else to do.
        let refused = migrate(&database.pool).await.expect_err("refused");
        assert!(matches!(refused, MigrateError::Untrusted { .. }), "{refused:?}");
        let refused = refused.to_string();
        assert!(refused.ends_with(&format!(": run {drop}")), "{refused}");
        database.execute("ALTER FUNCTION rate_limit._held STABLE").await;
        assert!(matches!(migrate(&database.pool).await, Err(MigrateError::Untrusted { .. })));
        database.execute(statement).await;
        migrate(&database.pool).await.expect("migrated");
    }
}

/// The privileges of other roles than the owner, but those to read the records.
async fn given(database: &Database) -> Option<String> {
    let given = "SELECT string_agg(o, ', ' ORDER BY o) FROM (
         SELECT p.oid::regprocedure || ' ' || a.grantee::regrole AS o
         FROM pg_proc AS p, aclexplode(coalesce(p.proacl, acldefault('f', p.proowner))) AS a
         WHERE p.pronamespace = 'rate_limit'::regnamespace AND a.grantee <> p.proowner UNION ALL
         SELECT c.relname || ' ' || a.grantee::regrole || a.privilege_type FROM pg_class AS c, aclexplode(c.relacl) AS a
         WHERE c.relnamespace = 'rate_limit'::regnamespace AND a.grantee <> c.relowner
           AND NOT (c.relname IN ('migrations', 'objects') AND a.grantee = 0)) AS x";
    sqlx::query_scalar(given).fetch_one(&database.pool).await.expect("privileges")
}

/// A restore of the definitions without the rows, as for a staging database, leaves the records empty. The functions can be those
/// of another release.
#[tokio::test]
async fn grants_stay_when_the_records_are_empty() {
    let empty = "DELETE FROM rate_limit.objects; DELETE FROM rate_limit.migrations";
    let of_another_release = format!("{empty}; ALTER FUNCTION rate_limit.undefine STRICT");
    let is_hidden = format!("{empty}; REVOKE ALL ON rate_limit.objects, rate_limit.migrations FROM PUBLIC");
    for (printed, restored) in [
        (false, empty),
        (true, empty),
        (false, "DELETE FROM rate_limit.migrations"),
        (false, &of_another_release),
        (true, &is_hidden),
    ] {
        let database = Database::migrated().await;
        let app = format!("app_of_{}", database.name);
        let grants = Use::ALL.map(guide::grants).join("; ").replace("app_role", &app);
        database.execute(&format!("CREATE ROLE {app}; {grants}")).await;
        let before = given(&database).await;
        assert!(before.is_some());
        database.execute(restored).await;
        match printed {
            true => database.execute(&script(&Schema::default(), Contents::All, Part::ALL)).await,
            false => _ = migrate(&database.pool).await.expect("migrated"),
        }
        assert_eq!(given(&database).await, before, "{restored}");
        assert_eq!(Migrator::default().check(&database.pool).await.expect("checked"), [], "{restored}");
        database.execute(&format!("DROP OWNED BY {app}; DROP ROLE {app}")).await;
    }
}

/// Printed SQL that is not run in a transaction can be interrupted before it revokes privileges on the new objects.
#[tokio::test]
async fn an_interrupted_installation_gives_no_role_any_rights() {
    let database = Database::empty().await;
    let anon = format!("anon_of_{}", database.name);
    let defaults =
        ["TABLES", "SEQUENCES", "FUNCTIONS"].map(|of| format!("ALTER DEFAULT PRIVILEGES GRANT ALL ON {of} TO {anon}"));
    database.execute(&format!("CREATE ROLE {anon}; {}", defaults.join("; "))).await;
    let printed = script(&Schema::default(), Contents::All, Part::ALL);
    let (begun, _) = printed.split_once("-- Revokes all privileges on new objects").expect("a step");
    let mut connection = sqlx::PgConnection::connect(&database.url).await.expect("a connection");
    sqlx::raw_sql(AssertSqlSafe(begun.to_owned())).execute(&mut connection).await.expect("begun");
    connection.close().await.expect("close");
    assert!(given(&database).await.is_some());
    migrate(&database.pool).await.expect("migrated");
    assert_eq!(given(&database).await, None);
    assert_eq!(Migrator::default().check(&database.pool).await.expect("checked"), []);
    database.execute(&format!("DROP OWNED BY {anon}; DROP ROLE {anon}")).await;
}

/// After a restore without privileges, PUBLIC can execute every function. A function of the application stays as it is.
#[tokio::test]
async fn functions_are_closed_to_public_again() {
    let database = Database::empty().await;
    let mine = "CREATE SCHEMA rate_limit;
        CREATE FUNCTION rate_limit.pause(text) RETURNS void LANGUAGE sql AS 'SELECT'";
    database.execute(mine).await;
    let migrator = Migrator::default();
    migrator.run(&database.pool).await.expect("migrated");
    let before = given(&database).await;
    let other = OtherRole::new(&database).await;
    database.execute(&format!("REVOKE CREATE ON SCHEMA rate_limit FROM {}", other.name)).await;
    for printed in [false, true] {
        database.execute("GRANT EXECUTE ON ALL FUNCTIONS IN SCHEMA rate_limit TO PUBLIC").await;
        let found = migrator.check(&database.pool).await.expect("checked");
        assert!(found.len() > 50 && found.iter().all(Drift::is_repaired_by_migrate), "{found:?}");
        // Another role than the owner has nothing to do.
        let mut connection = other.connection().await;
        assert_eq!(migrate_on(&mut connection).await.expect("nothing to do").functions, [""; 0]);
        connection.close().await.expect("close");
        assert_eq!(migrator.check(&database.pool).await.expect("checked"), found);
        match printed {
            true => database.execute(&script(&Schema::default(), Contents::All, Part::ALL)).await,
            false => assert_eq!(migrator.run(&database.pool).await.expect("migrated").functions, [""; 0]),
        }
        assert_eq!(migrator.check(&database.pool).await.expect("checked"), []);
        assert_eq!(given(&database).await, before);
        assert!(before.as_ref().is_some_and(|given| given.contains("pause(text)")), "{before:?}");
    }
    other.drop().await;
}

/// With default privileges that grant everything to other roles, as some hosts set them for PostgREST.
#[tokio::test]
async fn default_privileges_give_no_role_any_rights() {
    let database = Database::empty().await;
    let anon = format!("anon_of_{}", database.name);
    database
        .execute(&format!(
            "CREATE ROLE {anon}; CREATE SCHEMA rate_limit; GRANT USAGE ON SCHEMA rate_limit TO {anon};
             ALTER DEFAULT PRIVILEGES IN SCHEMA rate_limit GRANT ALL ON TABLES TO {anon};
             ALTER DEFAULT PRIVILEGES IN SCHEMA rate_limit GRANT ALL ON SEQUENCES TO {anon};
             ALTER DEFAULT PRIVILEGES IN SCHEMA rate_limit GRANT ALL ON FUNCTIONS TO {anon}"
        ))
        .await;
    for way in ["migrate", "print"] {
        if way == "migrate" {
            migrate(&database.pool).await.expect("migrated");
        } else {
            database.execute(&pg_limiter::migrate::uninstall(&Schema::default())).await;
            database.execute(&script(&Schema::default(), Contents::All, Part::ALL)).await;
        }
        assert_eq!(given(&database).await, None, "{way}");
        assert_eq!(Migrator::default().check(&database.pool).await.expect("checked"), []);
    }
    // Privileges that were granted by hand stay, even on replaced functions, and the check lists them.
    database.execute(&guide::grants(Use::App).replace("app_role", &anon)).await;
    database
        .execute(&format!("GRANT INSERT ON rate_limit.rate_limits TO {anon}; ALTER FUNCTION rate_limit._held STABLE"))
        .await;
    migrate(&database.pool).await.expect("migrated");
    let drift = Migrator::default().check(&database.pool).await.expect("checked");
    let granted = format!("the role {anon} has INSERT on rate_limits");
    assert!(drift.iter().any(|found| found.to_string().contains(&granted)), "{drift:?}");
    database.execute(&format!("DROP OWNED BY {anon}; DROP ROLE {anon}")).await;
}

/// With its own clock, a role that may call the functions could block a key for a century, or fill a bucket.
#[tokio::test]
async fn only_the_owner_may_set_the_clock() {
    let database = Database::migrated().await;
    let other = OtherRole::new(&database).await;
    for grant in [Use::App, Use::Sql].map(guide::grants) {
        database.execute(&grant.replace("app_role", &other.name)).await;
    }
    let mut connection = other.connection().await;
    let calls = ["limit_with", "enforce_with"].map(|function| {
        format!("SELECT * FROM rate_limit.{function}('a', 'k', 'token_bucket', 10, '1 minute', at => '2199-01-01')")
    });
    let decide = "SELECT * FROM rate_limit._decide(ARRAY['token_bucket'], ARRAY[10], ARRAY[60000000], NULL, NULL, NULL, NULL, NULL,
        ARRAY['a'], ARRAY['k'], NULL, NULL, NULL, NULL, NULL, NULL, NULL, ARRAY[7226582400000000])";
    for call in calls.iter().map(String::as_str).chain([decide]) {
        let error = sqlx::raw_sql(AssertSqlSafe(call.to_owned())).execute(&mut connection).await.expect_err("refused");
        let code = error.as_database_error().and_then(|error| error.code()).expect("a code").into_owned();
        assert_eq!(code, "42501", "{call}: {error}");
        sqlx::raw_sql(AssertSqlSafe(call.to_owned())).execute(&database.pool).await.expect("the owner may");
        database.execute("DELETE FROM rate_limit.rate_limits").await;
    }
    let now = calls[0].replace(", at => '2199-01-01'", "");
    sqlx::raw_sql(AssertSqlSafe(now)).execute(&mut connection).await.expect("a call on the database's clock");
    let check = calls[0].replace("limit_with(", "check_with(");
    sqlx::raw_sql(AssertSqlSafe(check)).execute(&mut connection).await.expect("a check writes nothing");
    connection.close().await.expect("close");
    other.drop().await;
}

/// A role that owns nothing and may create nothing can run a migration that has nothing to do.
#[tokio::test]
async fn a_role_without_rights_can_run_an_up_to_date_migration() {
    let database = Database::migrated().await;
    let other = OtherRole::new(&database).await;
    database.execute(&format!("REVOKE CREATE ON SCHEMA rate_limit FROM {}", other.name)).await;
    let mut connection = other.connection().await;
    let report = migrate_on(&mut connection).await.expect("nothing to do");
    assert_eq!((report.applied.len(), report.functions.len()), (0, 0));
    connection.close().await.expect("close");
    other.drop().await;
}
