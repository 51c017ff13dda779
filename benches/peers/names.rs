//! The names of the workloads and the peers, in the report and for `--only`.

pub(crate) const LONE: &str = "lone";
pub(crate) const HOT: &str = "hot";
pub(crate) const UNIFORM: &str = "uniform";
pub(crate) const ZIPF: &str = "zipf";
pub(crate) const FOUR: &str = "four";
pub(crate) const DENIED: &str = "denied";
pub(crate) const SLIDING: &str = "sliding";
pub(crate) const PROCESSES: &str = "processes";
pub(crate) const SHARDS: &str = "shards";
pub(crate) const FIRST_TOUCH: &str = "first_touch";
pub(crate) const ROWS: &str = "rows";
/// Batches of 128 calls.
pub(crate) const SUMS: &str = "sums";
pub(crate) const TABLE_SIZE: &str = "table_size";
pub(crate) const OLD_SNAPSHOT: &str = "old_snapshot";

pub(crate) const GROUPS: &str = "groups";
pub(crate) const SLIDING_256: &str = "sliding_256";
pub(crate) const FIXED_256: &str = "fixed_256";
pub(crate) const CONCURRENCY_256: &str = "concurrency_256";
/// A gateway's requests on 100 keys of users, and on one key.
pub(crate) const GATEWAY: &str = "gateway";
pub(crate) const GATEWAY_ONE_KEY: &str = "gateway_one_key";
/// One hot key, in memory.
pub(crate) const ALLOWANCE_256: &str = "allowance_256";
pub(crate) const LONE_SLIDING: &str = "lone_sliding";
pub(crate) const TRANSACTION_LIMIT: &str = "transaction_limit";
pub(crate) const TRANSACTION_TWO: &str = "transaction_two";
pub(crate) const TRANSACTION_SLIDING: &str = "transaction_sliding";

pub(crate) const WORKS: [&str; 25] = [
    LONE,
    LONE_SLIDING,
    HOT,
    UNIFORM,
    ZIPF,
    FOUR,
    GROUPS,
    SLIDING_256,
    FIXED_256,
    CONCURRENCY_256,
    GATEWAY,
    GATEWAY_ONE_KEY,
    ALLOWANCE_256,
    DENIED,
    SLIDING,
    TRANSACTION_LIMIT,
    TRANSACTION_TWO,
    TRANSACTION_SLIDING,
    PROCESSES,
    SHARDS,
    FIRST_TOUCH,
    ROWS,
    SUMS,
    TABLE_SIZE,
    OLD_SNAPSHOT,
];

pub(crate) const UPDATE: &str = "update";
pub(crate) const SEED: &str = "seed";
pub(crate) const OWN: &str = "pg-limiter";
pub(crate) const READ_COMMITTED: &str = "pg-limiter, READ COMMITTED";
pub(crate) const WITHIN: &str = "pg-limiter, caller's transaction";
pub(crate) const OWN_UNDER_OLD_SNAPSHOT: &str = "pg-limiter, old snapshot";
pub(crate) const WITHIN_UNDER_OLD_SNAPSHOT: &str = "pg-limiter, caller's transaction, old snapshot";
pub(crate) const REDIS: &str = "redis, in memory";
pub(crate) const REDIS_DURABLE: &str = "redis, appendfsync always";

pub(crate) const ALLOWANCE: &str = "pg-limiter, allowance";
pub(crate) const GOVERNOR: &str = "governor";

pub(crate) const FOUR_LIMITS: &str = "pg-limiter, 4 limits";
pub(crate) const ONE_LIMIT: &str = "pg-limiter, 1 limit";
pub(crate) const REMEMBERED: &str = "pg-limiter, denials remembered";
pub(crate) const LOG: &str = "sliding log";
pub(crate) const COUNTER: &str = "pg-limiter, sliding window";
pub(crate) const NEW_KEYS: &str = "pg-limiter, new keys";
pub(crate) const WARM_KEYS: &str = "pg-limiter, the same keys again";
pub(crate) const NEW_KEYS_READ_COMMITTED: &str = "pg-limiter, READ COMMITTED, new keys";
pub(crate) const WARM_KEYS_READ_COMMITTED: &str = "pg-limiter, READ COMMITTED, the same keys again";
/// The peers by their number of shards.
pub(crate) const SHARDED: [(u32, &str); 3] =
    [(1, "pg-limiter, 1 shard"), (4, "pg-limiter, 4 shards"), (16, "pg-limiter, 16 shards")];
pub(crate) const SHARDED_WITHIN: [(u32, &str); 3] = [
    (1, "pg-limiter, caller's transaction, 1 shard"),
    (4, "pg-limiter, caller's transaction, 4 shards"),
    (16, "pg-limiter, caller's transaction, 16 shards"),
];
pub(crate) const SHARDED_WORK: [(u32, &str); 3] = [
    (1, "pg-limiter, unit of work, 1 shard"),
    (4, "pg-limiter, unit of work, 4 shards"),
    (16, "pg-limiter, unit of work, 16 shards"),
];
pub(crate) const ROWS_LIMIT: &str = "pg-limiter, 10^7 rows";
pub(crate) const ROWS_UPDATE: &str = "update, 10^7 rows";
pub(crate) const ROWS_LIMIT_QUICK: &str = "pg-limiter, 10^5 rows";
pub(crate) const ROWS_UPDATE_QUICK: &str = "update, 10^5 rows";
/// TensorZero's functions in PL/pgSQL.
pub(crate) const TENSORZERO: &str = "TensorZero's functions";
pub(crate) const TWO_UPDATES: &str = "2 updates";
pub(crate) const SUMS_OF: [&str; 3] =
    ["pg-limiter, 128 token buckets", "pg-limiter, 128 fixed windows", "pg-limiter, 128 sliding windows"];
/// UPDATEs of rows of the same kinds.
pub(crate) const SUMS_UPDATES: [&str; 3] =
    ["update of 128 token buckets", "update of 128 fixed windows", "update of 128 sliding windows"];
