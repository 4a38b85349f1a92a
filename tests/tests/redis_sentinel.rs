//! A primary that sentinels watch, and servers that share the work: whoever fails, a request is
//! decided or told why not, and no limit admits too much.

#[path = "redis_sentinel/failover.rs"]
mod failover;
#[path = "redis_cluster/load.rs"]
mod load;
#[path = "redis_sentinel/split.rs"]
mod split;
