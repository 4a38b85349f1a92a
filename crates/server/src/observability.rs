//! Logs, metrics, status and hot keys of the daemon.

pub(crate) mod findings;
pub(crate) mod hot_keys;
pub(crate) mod key_values;
pub(crate) mod log;
pub(crate) mod metrics;
pub(crate) mod recovery_log;
pub(crate) mod status;
