//! Redis, with limits in Lua, over one multiplexed connection.

use std::fmt;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use redis::aio::MultiplexedConnection;
use redis::{AsyncConnectionConfig, Client, Script, cmd};

use crate::Failure;
use crate::cpu::Processes;
use crate::keys::{Keys, PREFIX, partner};
use crate::redis_server::RedisServer;

/// A token bucket that works as in pg-limiter: it uses the server's clock in microseconds and stores two numbers a bucket, a
/// denial writes nothing, and an idle bucket expires. ARGV: the capacity, and the tokens per microsecond. It returns whether
/// the call is allowed and, if not, the microseconds to wait.
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

/// The same for several buckets: it checks all, and then writes all or none. ARGV: the capacity, the tokens per microsecond and
/// the count of each. It returns the same as `TAKE`, with the longest wait.
const TAKE_ALL: &str = "
local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]
local values = {}
local wait = 0
for i = 1, #KEYS do
  local capacity, rate, count = tonumber(ARGV[3 * i - 2]), tonumber(ARGV[3 * i - 1]), tonumber(ARGV[3 * i])
  local bucket = redis.call('HMGET', KEYS[i], 'value', 'ts')
  local value = capacity
  if bucket[1] then
    value = math.min(tonumber(bucket[1]) + math.max(now - tonumber(bucket[2]), 0) * rate, capacity)
  end
  if value < count then
    wait = math.max(wait, math.ceil((count - value) / rate))
  end
  values[i] = value - count
end
if wait > 0 then
  return {0, wait}
end
for i = 1, #KEYS do
  local capacity, rate = tonumber(ARGV[3 * i - 2]), tonumber(ARGV[3 * i - 1])
  redis.call('HSET', KEYS[i], 'value', values[i], 'ts', now)
  redis.call('PEXPIRE', KEYS[i], math.ceil((capacity - values[i]) / rate / 1000))
end
return {1, 0}";

/// Gives tokens back to several buckets, up to their capacity. ARGV: as for `TAKE_ALL`. A bucket that has expired is full.
const GIVE_BACK: &str = "
local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]
for i = 1, #KEYS do
  local capacity, rate, count = tonumber(ARGV[3 * i - 2]), tonumber(ARGV[3 * i - 1]), tonumber(ARGV[3 * i])
  local bucket = redis.call('HMGET', KEYS[i], 'value', 'ts')
  if bucket[1] then
    local value = tonumber(bucket[1]) + math.max(now - tonumber(bucket[2]), 0) * rate
    value = math.min(value + count, capacity)
    redis.call('HSET', KEYS[i], 'value', value, 'ts', now)
    redis.call('PEXPIRE', KEYS[i], math.ceil((capacity - value) / rate / 1000))
  end
end
return {1, 0}";

/// A sliding window with two counters, by the algorithm of Upstash's ratelimit: the previous window's count is weighted by
/// how much of that window is still in the sliding window. Each window has its own key, which expires. KEYS: the counters of
/// the current and of the previous window. ARGV: the limit, the caller's clock and the window, both in milliseconds. It
/// returns whether the call is allowed and, if so, how many are left.
const SLIDE: &str = "
local limit, now, window = tonumber(ARGV[1]), tonumber(ARGV[2]), tonumber(ARGV[3])
local current = tonumber(redis.call('GET', KEYS[1]) or 0)
local previous = tonumber(redis.call('GET', KEYS[2]) or 0)
local used = current + math.floor(previous * (1 - now % window / window))
if used >= limit then
  return {0, 0}
end
if redis.call('INCRBY', KEYS[1], 1) == 1 then
  redis.call('PEXPIRE', KEYS[1], 2 * window + 1000)
end
return {1, limit - used - 1}";

/// A fixed window with one counter, which expires at the end of its window. ARGV: the limit, and the window in milliseconds.
/// It returns whether the call is allowed and, if so, how many are left.
const COUNT: &str = "
local limit = tonumber(ARGV[1])
local count = redis.call('INCR', KEYS[1])
if count == 1 then
  redis.call('PEXPIRE', KEYS[1], ARGV[2])
end
if count > limit then
  return {0, 0}
end
return {1, limit - count}";

/// Takes a slot under a lease: a sorted set has a member for each lease, by its end in milliseconds of the server's clock.
/// KEYS: the set. ARGV: the slots, the length of a lease in milliseconds, and its id. It returns whether the slot was taken
/// and, if so, how many are left.
const ACQUIRE: &str = "
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local slots, lease = tonumber(ARGV[1]), tonumber(ARGV[2])
redis.call('ZREMRANGEBYSCORE', KEYS[1], '-inf', now)
local held = redis.call('ZCARD', KEYS[1])
if held >= slots then
  return {0, 0}
end
redis.call('ZADD', KEYS[1], now + lease, ARGV[3])
redis.call('PEXPIRE', KEYS[1], lease)
return {1, slots - held - 1}";

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

    /// Connects to a Redis that runs already, perhaps on another machine. Its CPU time is unknown.
    pub(crate) async fn at(url: &str) -> Result<Self, Failure> {
        // A slow answer shows in the figures, and must not end the run. The buffer has a place for every caller, so that callers
        // wait only for their answers.
        let config = AsyncConnectionConfig::new().set_response_timeout(None).set_pipeline_buffer_size(1024);
        let connection = Client::open(url)?.get_multiplexed_async_connection_with_config(&config).await?;
        let mut redis = Self { connection, version: String::new(), processes: Processes(None), server: None };
        redis.version = field(&redis.info().await?, "redis_version").unwrap_or_default().to_owned();
        Ok(redis)
    }

    async fn info(&self) -> Result<String, Failure> {
        Ok(cmd("INFO").arg("server").query_async(&mut self.connection.clone()).await?)
    }

    /// A token bucket.
    pub(crate) fn bucket(&self, capacity: f64, period: Duration) -> RedisLimit {
        self.limit(TAKE, Asks::ItsKey, vec![capacity.to_string(), per_microsecond(period)])
    }

    /// Two token buckets, of each key and of its partner among `others`, all or none.
    pub(crate) fn two_buckets(&self, capacity: f64, period: Duration, others: Keys) -> RedisLimit {
        let (capacity, rate) = (capacity.to_string(), per_microsecond(period));
        let of_each = [capacity, rate, "1".to_owned()];
        self.limit(TAKE_ALL, Asks::WithPartner(others), [of_each.clone(), of_each].concat())
    }

    /// Token buckets, several in one call, all or none.
    pub(crate) fn buckets(&self, capacity: f64, period: Duration) -> RedisBuckets {
        RedisBuckets {
            connection: self.connection.clone(),
            take: Script::new(TAKE_ALL),
            give_back: Script::new(GIVE_BACK),
            limit: (capacity.to_string(), per_microsecond(period)),
        }
    }

    /// A sliding window.
    pub(crate) fn sliding_window(&self, limit: f64, window: Duration) -> RedisLimit {
        self.limit(SLIDE, Asks::TwoWindows(window), vec![limit.to_string()])
    }

    /// A fixed window.
    pub(crate) fn fixed_window(&self, limit: f64, window: Duration) -> RedisLimit {
        self.limit(COUNT, Asks::ItsKey, vec![limit.to_string(), window.as_millis().to_string()])
    }

    /// A concurrency limit. A call takes a slot and releases it.
    pub(crate) fn slots(&self, slots: u32, lease: Duration) -> RedisLimit {
        self.limit(ACQUIRE, Asks::ForASlot, vec![slots.to_string(), lease.as_millis().to_string()])
    }

    fn limit(&self, script: &str, asks: Asks, arguments: Vec<String>) -> RedisLimit {
        RedisLimit { connection: self.connection.clone(), script: Script::new(script), asks, arguments }
    }

    /// Removes the keys from a server that this run did not start.
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

/// The rate of one token per period.
fn per_microsecond(period: Duration) -> String {
    format!("{:e}", 1.0 / period.as_micros() as f64)
}

/// A limit, decided by a script.
pub(crate) struct RedisLimit {
    connection: MultiplexedConnection,
    script: Script,
    asks: Asks,
    arguments: Vec<String>,
}

/// The Redis keys for the key of a call.
#[derive(Debug)]
enum Asks {
    ItsKey,
    WithPartner(Keys),
    /// Its key. The id of the lease is an argument, too, and is released afterwards.
    ForASlot,
    /// One key for the current window and one for the previous window. The clock is an argument, too.
    TwoWindows(Duration),
}

impl fmt::Debug for RedisLimit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "RedisLimit({:?}, {:?})", self.asks, self.arguments)
    }
}

impl RedisLimit {
    pub(crate) async fn take(&self, key: &str) -> Result<bool, Failure> {
        let mut call = self.script.prepare_invoke();
        let lease = fastrand::u64(..);
        for argument in &self.arguments {
            call.arg(argument);
        }
        match &self.asks {
            Asks::ItsKey => {
                call.key(key);
            }
            Asks::ForASlot => {
                call.key(key).arg(lease);
            }
            Asks::WithPartner(others) => {
                call.key(key).key(&**partner(others, key));
            }
            Asks::TwoWindows(window) => {
                let (now, window) = (SystemTime::now().duration_since(UNIX_EPOCH)?.as_millis(), window.as_millis());
                let nth = now / window;
                call.key(format!("{key}:{nth}")).key(format!("{key}:{}", nth - 1));
                call.arg(now.to_string()).arg(window.to_string());
            }
        }
        let (allowed, _left_or_wait): (bool, i64) = call.invoke_async(&mut self.connection.clone()).await?;
        if allowed && matches!(self.asks, Asks::ForASlot) {
            let released: u32 = cmd("ZREM").arg(key).arg(lease).query_async(&mut self.connection.clone()).await?;
            return Ok(released == 1);
        }
        Ok(allowed)
    }
}

/// Token buckets, several in one call, which are settled afterwards.
pub(crate) struct RedisBuckets {
    connection: MultiplexedConnection,
    take: Script,
    give_back: Script,
    /// The capacity, and the tokens per microsecond.
    limit: (String, String),
}

impl fmt::Debug for RedisBuckets {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "RedisBuckets({:?})", self.limit)
    }
}

impl RedisBuckets {
    pub(crate) async fn take(&self, keys: &[Arc<str>], counts: &[u32]) -> Result<bool, Failure> {
        self.call(&self.take, keys, counts).await
    }

    pub(crate) async fn give_back(&self, keys: &[Arc<str>], counts: &[u32]) -> Result<(), Failure> {
        self.call(&self.give_back, keys, counts).await.map(drop)
    }

    async fn call(&self, script: &Script, keys: &[Arc<str>], counts: &[u32]) -> Result<bool, Failure> {
        let mut call = script.prepare_invoke();
        for (key, count) in keys.iter().zip(counts) {
            call.key(&**key).arg(&self.limit.0).arg(&self.limit.1).arg(count);
        }
        let (done, _wait): (bool, i64) = call.invoke_async(&mut self.connection.clone()).await?;
        Ok(done)
    }
}
