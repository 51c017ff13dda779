//! The sample output of `pg-limiter doctor` in the guide is what it prints, apart from numbers.

use pg_limiter::embedded::{Server, ServerConfig};
use pg_limiter::migrate::Use;
use pg_limiter::migrate::migrate;
use pg_limiter::sqlx;

use crate::binary::run;
use crate::support::Database;
use crate::support::guide::{chapter, grants};

/// A database as in the sample: a role that may only limit and read two tables, with relaxed durability and a time-out, and a
/// table in which most rows are idle.
const STATE: &str = "
    GRANT SELECT ON rate_limit.rate_limits, rate_limit.jobs TO app_role;
    ALTER ROLE app_role SET synchronous_commit = off;
    ALTER ROLE app_role SET idle_in_transaction_session_timeout = '1min';
    INSERT INTO rate_limit.rate_limits (name, key, value, ts, idle_at)
    SELECT 'api', 'u' || n, 1, rate_limit._clock(), rate_limit._clock() + CASE WHEN n <= 42000 THEN -1 ELSE 1e12 END
    FROM generate_series(1, 48000) AS n;
    ANALYZE rate_limit.rate_limits";

/// The text with each number replaced, and each unit of a size.
fn without_numbers(text: &str) -> String {
    let mut shown = String::new();
    for c in text.chars() {
        match c.is_ascii_digit() {
            true if shown.ends_with('N') => {}
            true => shown.push('N'),
            false => shown.push(c),
        }
    }
    // The clocks of server and tool are equal, but for less than a millisecond.
    shown.replace("N.N", "N").replace("N,N", "N").replace("N kB", "N MB").replace(" s behind ", " s ahead of ")
}

#[tokio::test(flavor = "multi_thread")]
async fn the_sample_of_doctor_in_the_guide_is_what_it_prints() {
    let server = tokio::task::spawn_blocking(|| {
        let mut config = ServerConfig::default();
        config.version = std::env::var("PG_LIMITER_TEST_VERSION").ok();
        config.settings.push(("autovacuum_naptime".into(), "1h".into()));
        Server::start(&config).unwrap_or_else(|error| panic!("{error}"))
    });
    let server = server.await.expect("a server");
    let url = server.url("postgres");
    let pool = Database::pool(&url, 1).await;
    migrate(&pool).await.expect("migrate");
    let sql = format!("CREATE ROLE app_role LOGIN; {}; {STATE}", grants(Use::App));
    sqlx::raw_sql(sqlx::AssertSqlSafe(sql)).execute(&pool).await.expect("the state of the sample");
    pool.close().await;
    let printed = run(Some(&url.replace("postgres@", "app_role@")), &["doctor"], "");
    assert_eq!(printed.code, Some(1), "{}{}", printed.stdout, printed.stderr);
    let sample = chapter("tool").split("```text\nok       engine").nth(1).and_then(|rest| rest.split("```").next());
    let sample = format!("ok       engine{}", sample.expect("a sample of doctor"));
    let [shown, sample] = [&*printed.stdout, &*sample].map(|text| without_numbers(text.trim_end()));
    let (shown, sample): (Vec<&str>, Vec<&str>) = (shown.lines().collect(), sample.lines().collect());
    assert_eq!(shown, sample, "doctor prints:\n{}", printed.stdout);
}
