use pg_limiter::sqlx::postgres::PgRow;
use pg_limiter::sqlx::{PgConnection, Row};

use super::sqlx;

use crate::model::{Kind, Rule};

/// One call of `_decide`. The arrays are built here, independently of the library's code.
#[derive(Clone, Debug)]
pub struct Step<'a> {
    pub op: &'a str,
    pub reserve: bool,
    pub at: Option<i64>,
    /// Name, key, rule, count.
    pub items: Vec<(&'a str, &'a str, &'a Rule, f64)>,
    /// The headroom of each item; 0 for items that are not listed.
    pub leaves: Vec<f64>,
}

impl Step<'_> {
    pub fn leave(&self, item: usize) -> f64 {
        self.leaves.get(item).copied().unwrap_or_default()
    }
}

#[derive(Clone, Debug, PartialEq)]
pub struct Answer {
    pub ok: bool,
    pub wait: Option<i64>,
    pub value: f64,
    pub refused: Vec<bool>,
    pub values: Vec<f64>,
}

fn kind(kind: Kind) -> String {
    let name = match kind {
        Kind::TokenBucket => "token_bucket",
        Kind::FixedWindow => "fixed_window",
        Kind::SlidingWindow => "sliding_window",
        Kind::CalendarWindow(calendar) => return calendar.in_sql(),
    };
    name.to_owned()
}

const ON_THE_TABLE: &str =
    "SELECT * FROM rate_limit._decide($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16, $17, $18)";

/// Decides as if no bucket had a row, and writes none.
const IN_MEMORY: &str = "SELECT d.*
    FROM (SELECT ARRAY(
        SELECT ROW(u.name, u.key, 0, 1, NULL, NULL, NULL, NULL)::rate_limit.rate_limits
        FROM unnest($9::text[], $10::text[]) WITH ORDINALITY AS u (name, key, nth) ORDER BY u.nth) AS rows
      WHERE $8::integer[] IS NOT NULL) AS b
    CROSS JOIN LATERAL rate_limit._decide_rows(
      $1, $2, $3, $4, $5, $6, $7, b.rows, NULL, $11, $12, $13, $14, $15, $16, $17, $18, NULL, 0, NULL, NULL, NULL, NULL) AS d";

/// Runs all steps in one statement, each repeated `times` times.
async fn send_steps(
    conn: &mut PgConnection,
    sql: &'static str,
    steps: &[Step<'_>],
    times: Option<&[i32]>,
) -> Result<PgRow, sqlx::Error> {
    let items: Vec<_> = steps.iter().flat_map(|step| step.items.iter().copied()).collect();
    let mut buckets: Vec<(&str, &str)> = items.iter().map(|(name, key, ..)| (*name, *key)).collect();
    buckets.sort_unstable();
    buckets.dedup();
    let leaves = steps.iter().flat_map(|step| (0..step.items.len()).map(|item| step.leave(item)));
    let item_rules: Vec<(&Rule, f64)> = items.iter().map(|(_, _, rule, _)| *rule).zip(leaves).collect();
    let mut rules: Vec<(&Rule, f64)> = Vec::new();
    for rule in &item_rules {
        if !rules.contains(rule) {
            rules.push(*rule);
        }
    }
    let sliding = |rule: &Rule| rule.kind == Kind::SlidingWindow;
    let int = |place: usize| i32::try_from(place + 1).expect("few");
    let bucket_of = |name: &str, key: &str| int(buckets.iter().position(|b| *b == (name, key)).expect("listed"));
    let rule_of = |rule: &(&Rule, f64)| int(rules.iter().position(|other| other == rule).expect("listed"));
    let max_reserved = |(rule, leave): &(&Rule, f64)| if *leave > 0.0 { Some(-leave) } else { rule.max_reserved };
    sqlx::query(sql)
        .bind(rules.iter().map(|(rule, _)| kind(rule.kind)).collect::<Vec<_>>())
        .bind(rules.iter().map(|(rule, _)| rule.rate).collect::<Vec<_>>())
        .bind(rules.iter().map(|(rule, _)| rule.period_us).collect::<Vec<_>>())
        .bind(rules.iter().map(|(rule, _)| rule.capacity).collect::<Vec<_>>())
        .bind(rules.iter().map(max_reserved).collect::<Vec<_>>())
        .bind(
            rules.iter().map(|(rule, _)| (rule.kind != Kind::TokenBucket).then_some(rule.start_us)).collect::<Vec<_>>(),
        )
        .bind(rules.iter().map(|(rule, _)| sliding(rule).then_some(rule.resolution.cast_signed())).collect::<Vec<_>>())
        .bind(rules.iter().map(|(rule, _)| rule.shards.cast_signed()).collect::<Vec<_>>())
        .bind(buckets.iter().map(|(name, _)| *name).collect::<Vec<_>>())
        .bind(buckets.iter().map(|(_, key)| *key).collect::<Vec<_>>())
        .bind(items.iter().map(|(name, key, ..)| bucket_of(name, key)).collect::<Vec<_>>())
        .bind(item_rules.iter().map(rule_of).collect::<Vec<_>>())
        .bind(items.iter().map(|(.., count)| *count).collect::<Vec<_>>())
        .bind(steps.iter().map(|step| step.op).collect::<Vec<_>>())
        .bind(steps.iter().map(|step| step.reserve).collect::<Vec<_>>())
        .bind(steps.iter().map(|step| int(step.items.len()) - 1).collect::<Vec<_>>())
        .bind(times)
        .bind(steps.iter().map(|step| step.at).collect::<Vec<_>>())
        .fetch_one(conn)
        .await
}

/// Runs all steps in one statement.
pub async fn decide(conn: &mut PgConnection, steps: &[Step<'_>]) -> Result<Vec<Answer>, sqlx::Error> {
    send_steps(conn, ON_THE_TABLE, steps, None).await.map(|row| answers(&row, steps))
}

/// The same without reading the table, as if every bucket were new.
pub async fn decide_in_memory(conn: &mut PgConnection, steps: &[Step<'_>]) -> Result<Vec<Answer>, sqlx::Error> {
    send_steps(conn, IN_MEMORY, steps, None).await.map(|row| answers(&row, steps))
}

fn answers(row: &PgRow, steps: &[Step<'_>]) -> Vec<Answer> {
    let admitted: Vec<i32> = row.get("call_admitted");
    let waits: Vec<Option<i64>> = row.get("call_waits");
    let mut refused = row.get::<Vec<bool>, _>("item_refused").into_iter();
    let mut item_values = row.get::<Vec<f64>, _>("item_values").into_iter();
    let answer = |(nth, step): (usize, &Step<'_>)| {
        let values: Vec<f64> = item_values.by_ref().take(step.items.len()).collect();
        Answer {
            ok: admitted[nth] == 1,
            wait: waits[nth],
            value: values.iter().copied().fold(f64::INFINITY, f64::min),
            refused: refused.by_ref().take(step.items.len()).collect(),
            values,
        }
    };
    steps.iter().enumerate().map(answer).collect()
}

/// How often a step was allowed, the wait of its denials, and the balance afterwards.
pub type Repeated = (i32, Option<i64>, f64);

/// Runs steps of one item each, repeated `times` times.
pub async fn decide_repeated(
    conn: &mut PgConnection,
    steps: &[Step<'_>],
    times: &[i32],
) -> Result<Vec<Repeated>, sqlx::Error> {
    let row = send_steps(conn, ON_THE_TABLE, steps, Some(times)).await?;
    let waits: Vec<Option<i64>> = row.get("call_waits");
    let values: Vec<f64> = row.get("item_values");
    let admitted: Vec<i32> = row.get("call_admitted");
    Ok(admitted.into_iter().zip(waits).zip(values).map(|((admitted, wait), value)| (admitted, wait, value)).collect())
}
