//! Logs, metrics, status and hot keys of the daemon.

pub(crate) mod access_log;
pub(crate) mod findings;
pub(crate) mod hot_keys;
pub(crate) mod key_values;
pub(crate) mod log;
pub(crate) mod metrics;
pub(crate) mod outages;
pub(crate) mod status;
pub(crate) mod throttle;
pub(crate) mod unmatched;
pub(crate) mod utc;
