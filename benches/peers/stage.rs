//! The servers, and the peers on them.

use std::sync::Arc;

use pg_limiter::{DenialMemory, Isolation};

use crate::Failure;
use crate::limiters;
use crate::names::{REDIS, REDIS_DURABLE};
use crate::options::Options;
use crate::peer::{Means, Peer};
use crate::postgres::Postgres;
use crate::redis_peer::{Redis, RedisLimit};
use crate::redis_server::RedisServer;

#[derive(Debug)]
pub(crate) struct Stage {
    pub(crate) options: Options,
    pub(crate) postgres: Postgres,
    in_memory: Option<Redis>,
    durable: Option<Redis>,
}

impl Stage {
    pub(crate) async fn set(options: Options) -> Result<Self, Failure> {
        let (in_memory, durable) = match std::env::var("REDIS_URL") {
            Ok(url) => {
                eprintln!("REDIS_URL is measured in place of the Redis in memory; the durable Redis is skipped");
                (Some(Redis::at(&url).await?), None)
            }
            Err(_) if RedisServer::is_installed() => {
                (Some(Redis::start(false).await?), Some(Redis::start(true).await?))
            }
            Err(_) => {
                eprintln!("no redis-server in PATH and no REDIS_URL: Redis is skipped");
                (None, None)
            }
        };
        Ok(Self { options, postgres: Postgres::start().await?, in_memory, durable })
    }

    pub(crate) fn redis_version(&self) -> Option<&str> {
        self.in_memory.as_ref().map(|redis| redis.version.as_str())
    }

    /// A peer that decides on this PostgreSQL server.
    pub(crate) fn peer(&self, name: &'static str, means: Means) -> Arc<Peer> {
        Peer::new(name, self.postgres.processes(), means)
    }

    pub(crate) async fn limiter(
        &self,
        name: &'static str,
        url: &str,
        isolation: Isolation,
        limit: &str,
    ) -> Result<Arc<Peer>, Failure> {
        Ok(self.peer(name, Means::Limiter(limiters::connect(url, isolation, None).await?, limit.into())))
    }

    pub(crate) async fn remembering(&self, name: &'static str, limit: &str) -> Result<Arc<Peer>, Failure> {
        let memory = Some(DenialMemory::default());
        let limiter = limiters::connect(&self.postgres.url(), Isolation::Serializable, memory).await?;
        Ok(self.peer(name, Means::Limiter(limiter, limit.into())))
    }

    /// One peer for each Redis that runs: none, one or two.
    pub(crate) fn redis(&self, limit: impl Fn(&Redis) -> RedisLimit) -> Vec<Arc<Peer>> {
        self.redis_peers(|redis| Means::Redis(limit(redis)))
    }

    /// The same, with other means than one limit.
    pub(crate) fn redis_peers(&self, means: impl Fn(&Redis) -> Means) -> Vec<Arc<Peer>> {
        let redis = [(REDIS, &self.in_memory), (REDIS_DURABLE, &self.durable)];
        let there = redis.into_iter().filter_map(|(name, redis)| Some((name, redis.as_ref()?)));
        let peer = |(name, redis): (_, &Redis)| Peer::new(name, redis.processes, means(redis));
        there.map(peer).collect()
    }

    /// Removes the keys of this run from a Redis that it did not start.
    pub(crate) async fn clear(&self) -> Result<(), Failure> {
        if let Some(redis) = &self.in_memory {
            redis.clear().await?;
        }
        Ok(())
    }
}
