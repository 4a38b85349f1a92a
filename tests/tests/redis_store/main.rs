//! The store in Redis, on real servers: what it decides, what it is told, and what it survives.
//!
//! One program, because linking one for each file takes longer than most of the tests in it.

mod client;
mod clock;
mod cluster;
mod crashes;
mod deny_cache;
mod differential;
mod digits;
mod format;
mod held_denials;
mod hot_keys;
mod leases;
mod load;
mod nodes;
mod outage;
mod processes;
mod refusals;
mod scripts;
mod sentinel;
mod settling;
mod setup;
mod undo;
mod versions;
