//! Requests during failures: the failure table, on real servers. `cargo xtask chaos` measures for a
//! long time and writes docs/failures.md. The tests run the same cases briefly, with tenfold slack
//! for figures that depend on the machine.
//!
//! ```text
//!   case.rs: every row ──▶ course.rs, slow.rs … ──▶ figure.rs: what was measured, and the target
//!                            node.rs: the layers in front of Redis    load.rs: requests at a rate
//! ```

mod callers;
mod case;
mod counted;
mod course;
mod failover;
mod far;
mod figure;
mod fleet;
mod herd;
mod histogram;
mod hot_key;
mod hung;
mod load;
mod node;
mod node_clock;
mod pace;
mod pause;
mod peer;
mod places;
mod process;
mod refusal;
mod shard;
mod slow;
mod starved;
mod store_clock;
mod strain;
mod unreachable;
mod upgrade;

pub use case::{CASES, Case};
pub use figure::Figure;
pub use pace::Pace;
pub use process::run as node_process;
