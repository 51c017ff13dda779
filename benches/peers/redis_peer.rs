//! Redis: a token bucket in Lua, over one multiplexed connection.

use std::fmt;
use std::time::Duration;

use redis::aio::MultiplexedConnection;
use redis::{AsyncConnectionConfig, Client, Script, cmd};

use crate::Failure;
use crate::cpu::Processes;
use crate::keys::PREFIX;
use crate::redis_server::RedisServer;

/// As in pg-limiter: the server's clock in microseconds, two numbers a bucket, a denial writes nothing, and an idle
/// bucket goes. ARGV: capacity, tokens a microsecond. Answers whether it is allowed, and if not the microseconds to wait.
const TAKE: &str = "
local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]
local capacity, rate = tonumber(ARGV[1]), tonumber(ARGV[2])
local bucket = redis.call('HMGET', KEYS[1], 'value', 'ts')
local value = capacity
if bucket[1] then
  value = math.min(tonumber(bucket[1]) + math.max(now - tonumber(bucket[2]), 0) * rate, capacity)
end
if value < 1 then
  return {0, math.ceil((1 - value) / rate)}
end
value = value - 1
redis.call('HSET', KEYS[1], 'value', value, 'ts', now)
redis.call('PEXPIRE', KEYS[1], math.ceil((capacity - value) / rate / 1000))
return {1, 0}";

#[derive(Debug)]
pub(crate) struct Redis {
    connection: MultiplexedConnection,
    pub(crate) version: String,
    pub(crate) processes: Processes,
    server: Option<RedisServer>,
}

impl Redis {
    pub(crate) async fn start(durable: bool) -> Result<Self, Failure> {
        let server = RedisServer::start(durable).await?;
        let mut redis = Self::at(&server.url()).await?;
        let pid = field(&redis.info().await?, "process_id").and_then(|pid| pid.parse().ok());
        redis.processes = Processes(pid);
        redis.server = Some(server);
        Ok(redis)
    }

    /// One that runs already, perhaps on another machine: its CPU time is not known.
    pub(crate) async fn at(url: &str) -> Result<Self, Failure> {
        // What is too slow shows in the figures; it should not end the run. Callers wait for answers, not for a place.
        let config = AsyncConnectionConfig::new().set_response_timeout(None).set_pipeline_buffer_size(1024);
        let connection = Client::open(url)?.get_multiplexed_async_connection_with_config(&config).await?;
        let mut redis = Self { connection, version: String::new(), processes: Processes(None), server: None };
        redis.version = field(&redis.info().await?, "redis_version").unwrap_or_default().to_owned();
        Ok(redis)
    }

    async fn info(&self) -> Result<String, Failure> {
        Ok(cmd("INFO").arg("server").query_async(&mut self.connection.clone()).await?)
    }

    /// Buckets of this limit.
    pub(crate) fn bucket(&self, capacity: f64, rate: f64, period: Duration) -> Bucket {
        Bucket {
            connection: self.connection.clone(),
            script: Script::new(TAKE),
            capacity: capacity.to_string(),
            rate: format!("{:e}", rate / period.as_micros() as f64),
        }
    }

    /// Leaves nothing on a server that is not ours.
    pub(crate) async fn clear(&self) -> Result<(), Failure> {
        if self.server.is_some() {
            return Ok(());
        }
        let mut connection = self.connection.clone();
        let mut cursor = 0_u64;
        loop {
            let mut scan = cmd("SCAN");
            scan.arg(cursor).arg("MATCH").arg(format!("{PREFIX}*")).arg("COUNT").arg(1000);
            let (next, keys): (u64, Vec<String>) = scan.query_async(&mut connection).await?;
            if !keys.is_empty() {
                cmd("UNLINK").arg(keys).query_async::<()>(&mut connection).await?;
            }
            cursor = next;
            if cursor == 0 {
                return Ok(());
            }
        }
    }
}

fn field<'a>(info: &'a str, name: &str) -> Option<&'a str> {
    info.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))
}

pub(crate) struct Bucket {
    connection: MultiplexedConnection,
    script: Script,
    capacity: String,
    rate: String,
}

impl fmt::Debug for Bucket {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Bucket({}, {})", self.capacity, self.rate)
    }
}

impl Bucket {
    pub(crate) async fn take(&self, key: &str) -> Result<bool, Failure> {
        let mut call = self.script.key(key);
        call.arg(&self.capacity).arg(&self.rate);
        let (allowed, _wait): (bool, u64) = call.invoke_async(&mut self.connection.clone()).await?;
        Ok(allowed)
    }
}
