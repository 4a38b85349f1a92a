//! Decides requests: limits in force, verdicts, reports and statistics.

pub(super) mod acquire;
pub(super) mod control;
pub(super) mod dry_run;
#[cfg(feature = "http")]
pub(super) mod http;
pub(super) mod inline;
pub(super) mod leases;
pub(super) mod limiter;
pub(super) mod local_override;
pub(super) mod reason;
pub(super) mod reservations;
pub(super) mod retry_spread;
pub(super) mod settle;
pub(super) mod shadow;
pub(super) mod stats;
mod token;
