//! `migrate` rejects an unsafe schema, and `doctor` lists the privileges of other roles.

use pg_limiter::migrate::Use;
use pg_limiter::migrate::migrate;

use crate::binary::run;
use crate::doctor::examine;
use crate::support::other_role::{OtherRole, objects_in_the_way};
use crate::support::{Database, guide};

#[tokio::test(flavor = "multi_thread")]
async fn migrate_rejects_objects_of_another_role() {
    for (put, _) in objects_in_the_way() {
        let database = Database::empty().await;
        let other = OtherRole::new(&database).await;
        other.does(&put).await;
        database.execute(&format!("REVOKE CREATE ON SCHEMA rate_limit FROM {}", other.name)).await;
        let refused = run(Some(&database.url), &["migrate"], "");
        assert!(refused.code == Some(3) && refused.stderr.contains("not safe"), "{}", refused.stderr);
        other.drop().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_trigger_on_a_table_is_rejected_with_the_statement_that_removes_it() {
    let database = Database::migrated().await;
    let trigger = "CREATE FUNCTION aud() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RETURN NEW; END $$;
        CREATE TRIGGER aud AFTER INSERT ON rate_limit.rate_limits FOR EACH ROW EXECUTE FUNCTION aud()";
    database.execute(trigger).await;
    let drop = "DROP TRIGGER aud ON rate_limit.rate_limits";
    run(Some(&database.url), &["migrate"], "").refuses(3, &["not safe", drop]);
    let checked = run(Some(&database.url), &["migrate", "--check"], "");
    checked.says(1, &format!("-- the relation rate_limits has the trigger aud; run:\n{drop};"));
    let found = examine(&database.url);
    found.has("tables", "problem", &["trigger aud", drop]).has("owners", "ok", &[]);
    database.execute(checked.stdout.trim()).await;
    run(Some(&database.url), &["migrate"], "").says(0, "schema \"rate_limit\" is at version 1: nothing to do");
}

#[tokio::test(flavor = "multi_thread")]
async fn doctor_reports_a_schema_in_which_others_can_create_objects() {
    let database = Database::empty().await;
    let other = OtherRole::new(&database).await;
    database.execute(&format!("REVOKE CREATE ON SCHEMA rate_limit FROM PUBLIC, {}", other.name)).await;
    migrate(&database.pool).await.expect("migrated");
    database.execute("GRANT CREATE ON SCHEMA rate_limit TO PUBLIC").await;
    let doctor = run(Some(&database.url), &["doctor"], "");
    assert!(doctor.stdout.contains("every role can create objects in it"), "{}", doctor.stdout);
    other.drop().await;
}

/// As after a restore without privileges.
#[tokio::test(flavor = "multi_thread")]
async fn migrate_reports_the_privileges_that_it_changes() {
    let database = Database::migrated().await;
    let restored = "REVOKE SELECT ON rate_limit.migrations, rate_limit.objects FROM PUBLIC;
        GRANT EXECUTE ON FUNCTION rate_limit._decide, rate_limit.reset(text) TO PUBLIC";
    let migrate = |args: &[&str]| run(Some(&database.url), &[&["migrate"], args].concat(), "");
    let done = "granted SELECT on the records to PUBLIC, revoked EXECUTE on 2 functions from PUBLIC";
    database.execute(restored).await;
    migrate(&[]).says(0, &format!("schema \"rate_limit\" is at version 1: {done}"));
    database.execute(restored).await;
    let report = migrate(&["--json"]);
    let report: serde_json::Value = serde_json::from_str(&report.stdout).expect("JSON");
    assert_eq!(report["privileges"].as_array().map(Vec::len), Some(3), "{report}");
    migrate(&[]).says(0, "schema \"rate_limit\" is at version 1: nothing to do");
}

/// A superuser that has restored the objects of a role gives them back with the printed statements.
#[tokio::test(flavor = "multi_thread")]
async fn objects_that_a_superuser_has_restored_are_reported() {
    let database = Database::empty().await;
    let [owner, login] = ["owner", "login"].map(|role| format!("{role}_of_{}", database.name));
    let create = format!("CREATE ROLE {owner}; CREATE ROLE {login} LOGIN; GRANT {owner} TO {login}");
    database.execute(&format!("{create}; CREATE SCHEMA rate_limit AUTHORIZATION {owner}")).await;
    let url = database.url.replacen("postgres@", &format!("{login}@"), 1);
    assert_ne!(url, database.url);
    assert_eq!(run(Some(&url), &["migrate"], "").code, Some(0));
    database.execute(&format!("REASSIGN OWNED BY {owner} TO postgres")).await;
    let refused = run(Some(&url), &["migrate", "--check"], "");
    assert!(refused.code == Some(1) && refused.stdout.lines().count() == 1, "{}", refused.stdout);
    assert!(refused.stdout.contains("let postgres or a superuser run"), "{}", refused.stdout);
    let url_of_superuser = Some(&*database.url);
    let doctor = run(url_of_superuser, &["doctor"], "");
    assert!(doctor.stdout.contains(&format!("OWNER TO \"{owner}\"")), "{}", doctor.stdout);
    let check = run(url_of_superuser, &["migrate", "--check"], "");
    assert!(check.code == Some(1) && !check.stdout.contains(&login), "{}", check.stdout);
    database.execute(&check.stdout).await;
    run(Some(&url), &["migrate"], "").says(0, "schema \"rate_limit\" is at version 1: nothing to do");
    database.execute(&format!("DROP OWNED BY {owner} CASCADE; DROP ROLE {owner}, {login}")).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn doctor_lists_privileges_that_were_granted_by_hand() {
    let database = Database::empty().await;
    let anon = format!("anon_of_{}", database.name);
    database.execute(&format!("CREATE ROLE {anon}")).await;
    migrate(&database.pool).await.expect("migrated");
    database.execute(&guide::grants(Use::App).replace("app_role", &anon)).await;
    database
        .execute(&format!("GRANT INSERT ON rate_limit.rate_limits TO {anon}; ALTER FUNCTION rate_limit._held STABLE"))
        .await;
    migrate(&database.pool).await.expect("migrated");
    let doctor = run(Some(&database.url), &["doctor"], "");
    assert!(doctor.stdout.contains(&format!("the role {anon} has INSERT on rate_limits")), "{}", doctor.stdout);
    let granted = format!("granted to: {anon} ({} functions, 1 table)", Use::App.functions().count());
    assert!(doctor.stdout.contains(&granted), "{}", doctor.stdout);
    database.execute(&format!("DROP OWNED BY {anon}; DROP ROLE {anon}")).await;
}
