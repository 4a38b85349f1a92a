//! Decides requests: limits in force, verdicts, reports and statistics.

pub(super) mod acquire;
pub(super) mod check_error;
pub(super) mod control;
pub(super) mod dry_run;
#[cfg(feature = "http")]
pub(super) mod http;
pub(super) mod inline;
pub(super) mod limiter;
pub(super) mod reason;
pub(super) mod settle;
pub(super) mod stats;
pub(super) mod token;
