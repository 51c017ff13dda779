//! The grants of each use: they are enough for it, give nothing else, and the guide lists them.

use std::collections::BTreeSet;
use std::time::Duration;

use pg_limiter::migrate::{CallableFunction, Part, Use, callable_functions, functions};
use pg_limiter::sqlx::postgres::PgPoolOptions;
use pg_limiter::sqlx::{self, AssertSqlSafe, PgPool};
use pg_limiter::{Calendar, Call, Item, Limit, Limiter, Limits, Schema};

use crate::support::{Database, guide};

const DAY: Duration = Duration::from_secs(86_400);

/// A role with the grants of this use and no others, and a pool of sessions of this role.
async fn role_for(database: &Database, of: Use) -> (String, PgPool) {
    let role = format!("{of}_of_{}", database.name);
    let grants = guide::grants(of).replace("app_role", &role);
    database
        .execute(&format!(
            "DROP ROLE IF EXISTS {role}; REVOKE CREATE ON SCHEMA public FROM PUBLIC; CREATE ROLE {role}; {grants}"
        ))
        .await;
    let options = (*database.pool.connect_options()).clone().options([("role", role.as_str())]);
    let pool = PgPoolOptions::new().max_connections(4).connect_with(options).await.expect("connect");
    (role, pool)
}

async fn drop_role(database: &Database, role: &str, pool: PgPool) {
    pool.close().await;
    database.execute(&format!("DROP OWNED BY {role}; DROP ROLE {role}")).await;
}

async fn texts(database: &Database, sql: &str, role: &str) -> BTreeSet<String> {
    let rows: Vec<String> = sqlx::query_scalar(AssertSqlSafe(sql.to_owned()))
        .bind(role)
        .fetch_all(&database.pool)
        .await
        .expect("privileges");
    rows.into_iter().collect()
}

#[tokio::test]
async fn the_grants_of_a_use_give_nothing_else() {
    let database = Database::migrated().await;
    let overloaded = "CASE WHEN (SELECT count(*) FROM pg_proc AS o WHERE o.pronamespace = p.pronamespace AND o.proname = p.proname) > 1 \
                      THEN '(' || pg_get_function_identity_arguments(p.oid) || ')' ELSE '' END";
    let functions = format!(
        "SELECT regexp_replace(p.proname || {overloaded}, '\\w+ text', 'text', 'g') FROM pg_proc AS p
         WHERE p.pronamespace = 'rate_limit'::regnamespace AND has_function_privilege($1, p.oid, 'EXECUTE')"
    );
    let relations = "SELECT c.relname || ' ' || right_of FROM pg_class AS c
         CROSS JOIN unnest(ARRAY['SELECT', 'INSERT', 'UPDATE', 'DELETE', 'TRUNCATE', 'REFERENCES', 'TRIGGER']) AS right_of
         WHERE c.relnamespace = 'rate_limit'::regnamespace AND c.relkind IN ('r', 'v') AND has_table_privilege($1, c.oid, right_of)";
    for of in Use::ALL {
        let (role, pool) = role_for(&database, of).await;
        let expected = of.functions().map(|function| function.signature.to_owned()).collect();
        assert_eq!(texts(&database, &functions, &role).await, expected, "{of}");
        // Every role may read which release migrated, and what it created.
        let all = ["migrations", "objects"];
        let expected = of.relations().iter().chain(&all).map(|relation| format!("{relation} SELECT")).collect();
        assert_eq!(texts(&database, relations, &role).await, expected, "{of}");
        let creates = "SELECT 'CREATE' WHERE has_schema_privilege($1, 'rate_limit', 'CREATE')";
        assert!(texts(&database, creates, &role).await.is_empty(), "{of}");
        drop_role(&database, &role, pool).await;
    }
}

/// A function that reads tables works for a role without rights only as its owner. If it were not listed, no use would have it.
#[tokio::test]
async fn the_functions_that_run_as_their_owner_are_those_that_roles_can_call() {
    let database = Database::migrated().await;
    let names: Vec<String> = sqlx::query_scalar(
        "SELECT DISTINCT proname::text FROM pg_proc WHERE pronamespace = 'rate_limit'::regnamespace AND prosecdef",
    )
    .fetch_all(&database.pool)
    .await
    .expect("functions");
    let run_as_owner: BTreeSet<&str> = names.iter().map(String::as_str).collect();
    let callable: BTreeSet<&str> = callable_functions().iter().map(CallableFunction::name).collect();
    assert_eq!(run_as_owner.difference(&callable).collect::<Vec<_>>(), Vec::<&&str>::new());
    assert_eq!(callable.difference(&run_as_owner).collect::<Vec<_>>(), Vec::<&&str>::new());
    let known = functions(&Schema::default(), Part::ALL);
    for function in callable_functions() {
        assert!(!function.uses.is_empty() && !function.lets.is_empty(), "{function:?}");
        assert!(known.iter().any(|known| known.signature.split('(').next() == Some(function.name())), "{function:?}");
    }
}

/// Every operation of the limiter but `forget`.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_role_with_the_grants_for_app_can_call_everything_but_forget() {
    let database = Database::migrated().await;
    let (role, pool) = role_for(&database, Use::App).await;
    let limits = Limits::new()
        .define("bucket", Limit::token_bucket(1000, DAY))
        .and_then(|limits| limits.define("fixed", Limit::fixed_window(1000, DAY)))
        .and_then(|limits| limits.define("sliding", Limit::sliding_window(1000, DAY)))
        .and_then(|limits| limits.define("day", Limit::calendar(1000, Calendar::days(1))))
        .and_then(|limits| limits.define("slots", Limit::concurrency(5)))
        .and_then(|limits| limits.define("gate", Limit::gate()))
        .and_then(|limits| limits.define("sharded", Limit::token_bucket(1000, DAY).shards(4)))
        .expect("limits");
    let names = ["bucket", "fixed", "sliding", "day", "sharded"];
    let limiter = Limiter::with_config(pool.clone(), limits, Database::config());
    for name in names {
        assert!(limiter.limit((name, "k")).await.expect("a decision").is_allowed(), "{name}");
        assert!(limiter.check((name, "k")).await.expect("a decision").is_allowed(), "{name}");
    }
    assert!(limiter.limit(Item::new("bucket", "k").reserve()).await.expect("a decision").is_allowed());
    let items = || names.map(|name| Item::new(name, "k"));
    let groups = (0..8).map(|_| limiter.limit(items()));
    for decision in futures_util::future::join_all(groups).await {
        assert!(decision.expect("a decision").is_allowed());
    }
    assert!(limiter.limit(Call::from(items().to_vec()).idempotency_key("1")).await.expect("a decision").is_allowed());
    let _ = limiter.peek(items()).await.expect("balances");
    let _ = limiter.charge(items()).await.expect("balances");
    let _ = limiter.credit(("bucket", "k")).await.expect("balances");
    limiter.reset(items()).await.expect("reset");
    let _ = limiter.reset_all_keys("bucket").await.expect("reset");
    limiter.block(("gate", "k"), DAY).await.expect("block");
    assert!(limiter.is_blocked(("gate", "k")).await.expect("a look").is_some());
    limiter.unblock(("gate", "k")).await.expect("unblock");
    let held = limiter.acquire(("slots", "k")).await.expect("slots").enforce().expect("slots");
    held.release().await.expect("release");
    limiter.prune().await.expect("prune");
    let _ = Limits::stored(&pool).await.expect("stored limits");
    let mut tx = pool.begin().await.expect("begin");
    assert!(limiter.within(&mut tx).limit(items()).await.expect("a decision").is_allowed());
    tx.commit().await.expect("commit");
    let error = limiter.forget("k").await.expect_err("only operators forget");
    assert!(error.to_string().contains("permission denied"), "{error}");
    drop(limiter);
    drop_role(&database, &role, pool).await;
}

/// The statements of a text of SQL, each on one line.
fn statements(sql: &str) -> Vec<String> {
    let words = |statement: &str| statement.split_whitespace().collect::<Vec<_>>().join(" ");
    sql.split_inclusive(';').map(words).filter(|statement| !statement.is_empty()).collect()
}

#[test]
fn the_guide_lists_the_grants_of_each_use() {
    let listed: Vec<Vec<String>> = guide::sql_of(guide::chapter("migrations"))
        .into_iter()
        .filter(|block| block.contains(" TO app_role;"))
        .map(statements)
        .collect();
    let expected: Vec<_> = Use::ALL.map(|of| statements(&guide::grants(of).replace('"', ""))).to_vec();
    assert_eq!(listed, expected);
}

/// The guide's table of what EXECUTE on a function lets a role do.
#[test]
fn the_guide_says_what_each_function_lets_a_role_do() {
    let mut rows: Vec<(Vec<String>, &CallableFunction)> = Vec::new();
    for function in callable_functions() {
        let name = format!("`{}`", function.signature);
        match rows.iter_mut().find(|(_, other)| other.uses == function.uses && other.lets == function.lets) {
            Some((names, _)) => names.push(name),
            None => rows.push((vec![name], function)),
        }
    }
    let row = |(names, function): &(Vec<String>, &CallableFunction)| {
        let uses: Vec<_> = function.uses.iter().map(|of| of.name()).collect();
        format!("| {} | {} | {} |\n", names.join(", "), function.lets, uses.join(", "))
    };
    let table: String = rows.iter().map(row).collect();
    let table = format!("| EXECUTE on | lets a role | needed by |\n|---|---|---|\n{table}");
    assert!(guide::chapter("migrations").contains(&table), "the guide's table should be:\n{table}");
}
