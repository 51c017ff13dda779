//! Runs the worked cases of `tests/data/scenarios.jsonl` through the SQL: through the public functions step by step, through
//! the deciding function step by step, and as whole scenarios in one statement.

use std::collections::BTreeMap;

use pg_limiter::sqlx::pool::PoolConnection;
use pg_limiter::sqlx::{Connection, Postgres, Row};
use serde::Deserialize;

use crate::model::{Kind, Rule};
use crate::support::sqlx;
use crate::support::{Answer, Database, Step, decide};

/// 2026-01-01T00:00:00Z in milliseconds: the zero of the times in the file.
const EPOCH_MS: f64 = 1_767_225_600_000.0;
/// In milliseconds.
const TOLERANCE: f64 = 0.002;

#[derive(Deserialize)]
struct Scenario {
    name: String,
    config: Option<Config>,
    #[serde(default)]
    limits: BTreeMap<String, Config>,
    steps: Vec<ScenarioStep>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Config {
    kind: String,
    rate: f64,
    period_ms: f64,
    capacity: Option<f64>,
    max_reserved: Option<f64>,
    start_ms: Option<f64>,
    resolution: Option<u32>,
}

#[derive(Deserialize)]
struct ScenarioStep {
    at_ms: f64,
    op: String,
    count: Option<f64>,
    #[serde(default)]
    reserve: bool,
    #[serde(default)]
    all: Vec<ScenarioItem>,
    expect: Option<Expect>,
}

#[derive(Deserialize)]
struct ScenarioItem {
    limit: String,
    key: String,
    count: f64,
}

#[derive(Deserialize)]
struct Expect {
    ok: Option<bool>,
    retry_after_ms: Option<f64>,
    error: Option<String>,
    denied_by: Option<Vec<String>>,
}

fn micros(ms: f64) -> i64 {
    (ms * 1000.0).round() as i64
}

impl Config {
    fn rule(&self) -> Rule {
        Rule {
            kind: match self.kind.as_str() {
                "token_bucket" => Kind::TokenBucket,
                "fixed_window" => Kind::FixedWindow,
                "sliding_window" => Kind::SlidingWindow,
                other => panic!("kind {other}"),
            },
            rate: self.rate,
            period_us: micros(self.period_ms),
            capacity: self.capacity,
            max_reserved: self.max_reserved,
            start_us: self.start_ms.map_or(0, |start| micros(start + EPOCH_MS)),
            resolution: self.resolution.unwrap_or(1),
            shards: 1,
        }
    }
}

fn scenarios() -> Vec<Scenario> {
    let text = include_str!("../data/scenarios.jsonl");
    text.lines().map(|line| serde_json::from_str(line).expect("a scenario")).collect()
}

struct Case {
    scenario: Scenario,
    rules: BTreeMap<String, Rule>,
}

impl Case {
    fn new(scenario: Scenario) -> Self {
        let mut rules: BTreeMap<_, _> =
            scenario.limits.iter().map(|(name, config)| (format!("{}/{name}", scenario.name), config.rule())).collect();
        if let Some(config) = &scenario.config {
            rules.insert(scenario.name.clone(), config.rule());
        }
        Self { scenario, rules }
    }

    fn step<'a>(&'a self, step: &'a ScenarioStep) -> Step<'a> {
        let items = if step.all.is_empty() {
            let (name, rule) = self.rules.iter().next().expect("a rule");
            vec![(name.as_str(), "", rule, step.count.unwrap_or(1.0))]
        } else {
            let item = |item: &'a ScenarioItem| {
                let name = format!("{}/{}", self.scenario.name, item.limit);
                let (name, rule) = self.rules.get_key_value(&name).expect("a rule");
                (name.as_str(), item.key.as_str(), rule, item.count)
            };
            step.all.iter().map(item).collect()
        };
        Step { leaves: Vec::new(), op: &step.op, reserve: step.reserve, at: Some(micros(step.at_ms + EPOCH_MS)), items }
    }

    fn compare(&self, nth: usize, step: &ScenarioStep, ok: bool, wait_ms: Option<f64>) {
        let Some(expect) = &step.expect else { return };
        let place = format!("{} step {nth}", self.scenario.name);
        assert_eq!(expect.error, None, "{place}: expected an error");
        assert_eq!(Some(ok), expect.ok, "{place}");
        match (wait_ms, expect.retry_after_ms) {
            (None, None) => {}
            (Some(wait), Some(expected)) if (wait - expected).abs() <= TOLERANCE => {}
            (wait, expected) => panic!("{place}: retry after {wait:?}, expected {expected:?}"),
        }
    }

    fn compare_answer(&self, nth: usize, step: &ScenarioStep, answer: &Answer) {
        self.compare(nth, step, answer.ok, answer.wait.map(|micros| micros as f64 / 1000.0));
        if let Some(expected) = step.expect.as_ref().and_then(|expect| expect.denied_by.as_ref()) {
            let mut by: Vec<&str> = Vec::new();
            by.extend(
                step.all.iter().zip(&answer.refused).filter(|(_, refused)| **refused).map(|(item, _)| &*item.limit),
            );
            by.sort_unstable();
            by.dedup();
            assert_eq!(by, *expected, "{} step {nth}", self.scenario.name);
        }
    }
}

fn is_error(step: &ScenarioStep) -> Option<&str> {
    step.expect.as_ref()?.error.as_deref()
}

fn cases() -> Vec<Case> {
    let cases: Vec<Case> = scenarios().into_iter().map(Case::new).collect();
    let steps: usize = cases.iter().map(|case| case.scenario.steps.len()).sum();
    assert_eq!((cases.len(), steps), (295, 5855));
    cases
}

/// A connection as the owner, which may set the clock.
async fn as_owner(database: &Database) -> PoolConnection<Postgres> {
    let mut conn = database.app.acquire().await.expect("a connection");
    sqlx::query("SET ROLE NONE").execute(&mut *conn).await.expect("the owner");
    conn
}

#[tokio::test]
async fn the_deciding_function_gives_the_worked_answers() {
    let database = Database::migrated().await;
    let mut conn = as_owner(&database).await;
    for case in cases() {
        for (nth, step) in case.scenario.steps.iter().enumerate() {
            let mut tx = conn.begin().await.expect("begin");
            let result = decide(&mut tx, &[case.step(step)]).await;
            if result.is_ok() {
                tx.commit().await.expect("commit");
            } else {
                tx.rollback().await.expect("rollback");
            }
            match (result, is_error(step)) {
                (Ok(answers), None) => case.compare_answer(nth, step, &answers[0]),
                (Err(error), Some(expected)) => assert!(error.to_string().contains(expected), "{error}"),
                (result, expected) => panic!("{} step {nth}: {result:?}, expected {expected:?}", case.scenario.name),
            }
        }
    }
}

#[tokio::test]
async fn whole_scenarios_in_one_statement_give_the_worked_answers() {
    let database = Database::migrated().await;
    let mut conn = as_owner(&database).await;
    for case in cases() {
        let steps: Vec<&ScenarioStep> = case.scenario.steps.iter().filter(|step| is_error(step).is_none()).collect();
        let mut tx = conn.begin().await.expect("begin");
        let answers = decide(&mut tx, &steps.iter().map(|step| case.step(step)).collect::<Vec<_>>()).await;
        tx.commit().await.expect("commit");
        for (nth, (step, answer)) in steps.iter().zip(answers.expect("answers")).enumerate() {
            case.compare_answer(nth, step, &answer);
        }
    }
}

#[tokio::test]
async fn the_public_functions_give_the_worked_answers() {
    let database = Database::migrated().await;
    let mut conn = as_owner(&database).await;
    for case in cases() {
        let Some(config) = &case.scenario.config else { continue };
        for (nth, step) in case.scenario.steps.iter().enumerate() {
            if step.op == "reset" {
                let gone = sqlx::query("SELECT rate_limit.reset($1, '')").bind(&case.scenario.name);
                let mut tx = conn.begin().await.expect("begin");
                gone.execute(&mut *tx).await.expect("reset");
                tx.commit().await.expect("commit");
                continue;
            }
            let function = if step.op == "check" { "check_with" } else { "limit_with" };
            let sql = format!(
                "SELECT ok, extract(epoch FROM retry_after)::double precision * 1000 AS retry_after FROM rate_limit.{function}(\
                 $1, '', kind => $2, rate => $3, period => $4 * interval '1 millisecond', capacity => $5, count => $6, \
                 reserve => $7, max_reserved => $8, start => $9 * interval '1 millisecond', resolution => $10, \
                 at => timestamptz 'epoch' + $11 * interval '1 millisecond')"
            );
            let mut tx = conn.begin().await.expect("begin");
            let row = sqlx::query(sqlx::AssertSqlSafe(sql))
                .bind(&case.scenario.name)
                .bind(&config.kind)
                .bind(config.rate)
                .bind(config.period_ms)
                .bind(config.capacity)
                .bind(step.count.unwrap_or(1.0))
                .bind(step.reserve)
                .bind(config.max_reserved)
                .bind(config.start_ms.map(|start| start + EPOCH_MS))
                .bind(config.resolution.map(u32::cast_signed))
                .bind(step.at_ms + EPOCH_MS)
                .fetch_one(&mut *tx)
                .await;
            if row.is_ok() {
                tx.commit().await.expect("commit");
            } else {
                tx.rollback().await.expect("rollback");
            }
            match (row, is_error(step)) {
                (Ok(row), None) => case.compare(nth, step, row.get("ok"), row.get("retry_after")),
                (Err(error), Some(expected)) => assert!(error.to_string().contains(expected), "{error}"),
                (result, expected) => panic!("{} step {nth}: {result:?}, expected {expected:?}", case.scenario.name),
            }
        }
    }
}
