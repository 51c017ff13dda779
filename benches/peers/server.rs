use pg_limiter::embedded::Server;
use sqlx::PgPool;
use sqlx::postgres::PgPoolOptions;

/// The yardsticks: a row to update, and the function that the idea comes from (F. Pachot, "Rate limiting with
/// PostgreSQL / YugabyteDB (token buckets function)", 2022: update, insert if that found nothing).
const YARDSTICKS: &str = "
CREATE TABLE plain (id integer PRIMARY KEY, value double precision NOT NULL) WITH (fillfactor = 70);
INSERT INTO plain VALUES (1, 0);

CREATE TABLE seed (id text PRIMARY KEY, tk double precision NOT NULL, ts timestamptz NOT NULL) WITH (fillfactor = 70);
CREATE FUNCTION seed_take(rate_id text, per_second double precision, capacity double precision)
RETURNS double precision LANGUAGE plpgsql AS $$
DECLARE
  left_over double precision;
BEGIN
  UPDATE seed
  SET tk = least(tk + extract(epoch FROM clock_timestamp() - ts)::double precision * per_second, capacity) - 1,
      ts = clock_timestamp()
  WHERE id = rate_id
  RETURNING tk INTO left_over;
  IF NOT FOUND THEN
    INSERT INTO seed VALUES (rate_id, capacity - 1, clock_timestamp()) RETURNING tk INTO left_over;
  END IF;
  RETURN left_over;
END $$;
INSERT INTO seed VALUES ('hot', 0, clock_timestamp());
";

/// A pool on a database with everything that is measured.
pub(crate) async fn prepare(server: &Server) -> Result<PgPool, Box<dyn std::error::Error>> {
    let options = PgPoolOptions::new().max_connections(32).min_connections(32).test_before_acquire(false);
    let pool = options.connect(&server.url("postgres")).await?;
    pg_limiter::migrate::migrate(&pool).await?;
    sqlx::raw_sql(YARDSTICKS).execute(&pool).await?;
    Ok(pool)
}
