//! A real cluster of three primaries, each with a replica: whatever moves or fails, a request is
//! decided or told why not, and no limit admits too much.

mod crossing;
mod decisions;
mod failover;
mod resharding;
mod slots;
