//! The PostgreSQL server of the run, and the yardsticks on it.

use pg_limiter::embedded::{Server, ServerConfig};
use sqlx::postgres::PgPoolOptions;
use sqlx::{AssertSqlSafe, Connection, PgConnection, PgPool};

use crate::Failure;
use crate::cpu::Processes;
use crate::limiters::PLENTY;

/// The yardsticks:
///
/// - `plain`: a row to update.
/// - `seed`: the function that the idea comes from, by F. Pachot, "Rate limiting with PostgreSQL / YugabyteDB (token buckets
///   function)", 2022. It updates the row, and inserts it if there is none.
/// - `orders` and `messages`: the tables of an application.
/// - `tensorzero_take` and `tensorzero_give_back`: the functions with which TensorZero kept its limits in PostgreSQL, written from
///   their description. They lock the rows in the order of their keys by an upsert that changes nothing, keep them in a
///   temporary table, and write all of them.
/// - `log`: all hits of the last 10 seconds. It counts exactly, because an advisory lock serializes the callers of a key.
const YARDSTICKS: &str = r#"
CREATE TABLE plain (key text COLLATE "C" PRIMARY KEY, value double precision NOT NULL) WITH (fillfactor = 70);

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

CREATE TABLE orders (at timestamptz NOT NULL DEFAULT clock_timestamp());

CREATE TABLE messages (
  id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
  author text NOT NULL,
  body text NOT NULL,
  sent_at timestamptz NOT NULL DEFAULT now()
);

CREATE TABLE tensorzero (key text COLLATE "C" PRIMARY KEY, tickets bigint NOT NULL, as_of timestamptz NOT NULL)
  WITH (fillfactor = 70);
CREATE FUNCTION tensorzero_lock(
  keys text[], counts bigint[], capacities bigint[], refills bigint[], refill_every interval
) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
  CREATE TEMP TABLE temp_bucket_states (key text, tickets bigint, as_of timestamptz, count bigint, capacity bigint) ON COMMIT DROP;
  WITH asked AS (
    SELECT * FROM unnest(keys, counts, capacities, refills) AS asked (key, count, capacity, refill)
  ), locked AS (
    INSERT INTO tensorzero AS t (key, tickets, as_of)
    SELECT a.key, a.capacity, now() FROM asked AS a ORDER BY a.key
    ON CONFLICT (key) DO UPDATE SET key = EXCLUDED.key
    RETURNING t.*
  )
  INSERT INTO temp_bucket_states
  SELECT
    l.key, least(l.tickets + passed.intervals * a.refill, a.capacity), l.as_of + passed.intervals * refill_every, a.count, a.capacity
  FROM locked AS l
  JOIN asked AS a ON a.key = l.key
  CROSS JOIN LATERAL (
    SELECT greatest(floor(extract(epoch FROM now() - l.as_of) / extract(epoch FROM refill_every)), 0)::bigint AS intervals
  ) AS passed;
END $$;
CREATE FUNCTION tensorzero_take(
  keys text[], counts bigint[], capacities bigint[], refills bigint[], refill_every interval
) RETURNS TABLE (bucket text, ok boolean, tickets_left bigint) LANGUAGE plpgsql AS $$
DECLARE
  all_ok boolean;
BEGIN
  PERFORM tensorzero_lock(keys, counts, capacities, refills, refill_every);
  SELECT bool_and(s.tickets >= s.count) INTO all_ok FROM temp_bucket_states AS s;
  RETURN QUERY
  UPDATE tensorzero AS t
  SET tickets = CASE WHEN all_ok THEN s.tickets - s.count ELSE s.tickets END, as_of = s.as_of
  FROM temp_bucket_states AS s
  WHERE t.key = s.key
  RETURNING t.key, all_ok, t.tickets;
END $$;
CREATE FUNCTION tensorzero_give_back(
  keys text[], counts bigint[], capacities bigint[], refills bigint[], refill_every interval
) RETURNS TABLE (bucket text, ok boolean, tickets_left bigint) LANGUAGE plpgsql AS $$
BEGIN
  PERFORM tensorzero_lock(keys, counts, capacities, refills, refill_every);
  RETURN QUERY
  UPDATE tensorzero AS t
  SET tickets = least(s.tickets + s.count, s.capacity), as_of = s.as_of
  FROM temp_bucket_states AS s
  WHERE t.key = s.key
  RETURNING t.key, true, t.tickets;
END $$;

CREATE TABLE log (key text COLLATE "C" NOT NULL, at timestamptz NOT NULL);
CREATE INDEX ON log (key, at);
CREATE FUNCTION log_take(whose text) RETURNS boolean LANGUAGE plpgsql AS $$
DECLARE
  hits bigint;
BEGIN
  PERFORM pg_advisory_xact_lock(hashtext(whose));
  DELETE FROM log WHERE key = whose AND at <= clock_timestamp() - interval '10 seconds';
  SELECT count(*) INTO hits FROM log WHERE key = whose;
  IF hits >= 1e9 THEN
    RETURN false;
  END IF;
  INSERT INTO log VALUES (whose, clock_timestamp());
  RETURN true;
END $$;
"#;

#[derive(Debug)]
pub(crate) struct Postgres {
    server: Server,
    /// The pool of the yardsticks. It does not ping a connection before each use, so it is as fast as a pool can be.
    pub(crate) pool: PgPool,
}

impl Postgres {
    pub(crate) async fn start() -> Result<Self, Failure> {
        let mut config = ServerConfig::default();
        config.settings.push(("max_connections".to_owned(), "500".to_owned()));
        let server = tokio::task::spawn_blocking(move || Server::start(&config)).await??;
        let options = PgPoolOptions::new().max_connections(32).test_before_acquire(false);
        let pool = options.connect(&server.url("postgres")).await?;
        pg_limiter::migrate::migrate(&pool).await?;
        sqlx::raw_sql(YARDSTICKS).execute(&pool).await?;
        Ok(Self { server, pool })
    }

    /// The URL of the main database. Some workloads have their own databases.
    pub(crate) fn url(&self) -> String {
        self.server.url("postgres")
    }

    /// Inserts rows with these keys for a bare UPDATE.
    pub(crate) async fn rows_to_update(&self, keys: impl IntoIterator<Item = impl AsRef<str>>) -> Result<(), Failure> {
        let keys: Vec<String> = keys.into_iter().map(|key| key.as_ref().to_owned()).collect();
        let rows = "INSERT INTO plain SELECT key, $1 FROM unnest($2::text[]) AS key";
        sqlx::query(rows).bind(PLENTY).bind(keys).execute(&self.pool).await?;
        Ok(())
    }

    /// Creates another database with the limiter's tables, which are empty, and returns its URL.
    pub(crate) async fn database(&self, name: &str) -> Result<String, Failure> {
        sqlx::raw_sql(AssertSqlSafe(format!("CREATE DATABASE {name}"))).execute(&self.pool).await?;
        let url = self.server.url(name);
        let mut connection = PgConnection::connect(&url).await?;
        pg_limiter::migrate::migrate_on(&mut connection).await?;
        connection.close().await?;
        Ok(url)
    }

    pub(crate) fn processes(&self) -> Processes {
        Processes(self.server.pid())
    }

    pub(crate) fn version(&self) -> &str {
        self.server.version()
    }

    pub(crate) fn source(&self) -> &str {
        self.server.source()
    }
}
