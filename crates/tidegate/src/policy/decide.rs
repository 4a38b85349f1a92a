//! Decides requests: limits in force, verdicts, reports and statistics.

pub(super) mod answer;
pub(super) mod control;
pub(super) mod dry_run;
pub(super) mod limiter;
pub(super) mod local_override;
pub(super) mod reason;
pub(super) mod report;
pub(super) mod shadow;
pub(super) mod stats;
