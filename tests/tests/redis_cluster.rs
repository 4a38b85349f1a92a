//! A real cluster of three primaries, each with a replica: whatever moves or fails, a request is
//! decided or told why not, and no limit admits too much.

#[path = "redis_cluster/crossing.rs"]
mod crossing;
#[path = "redis_cluster/decisions.rs"]
mod decisions;
#[path = "redis_cluster/failover.rs"]
mod failover;
#[path = "redis_cluster/load.rs"]
mod load;
#[path = "redis_cluster/resharding.rs"]
mod resharding;
#[path = "redis_cluster/slots.rs"]
mod slots;
