//! The audit log: one line for every change on the admin port, at every log level.

use tidegate::policy::Switch;
use tracing::info;

use crate::observability::log::AUDIT;

/// A change that was made.
#[derive(Debug, Default)]
pub(super) struct Change {
    /// The limit, if the change is about one.
    pub(super) limit: Option<String>,
    /// The new value.
    pub(super) value: String,
    /// Why, in the caller's words.
    pub(super) reason: Option<String>,
}

impl Change {
    /// Logs the change, made by `caller` with `call`.
    pub(super) fn log(&self, caller: &str, call: &str) {
        let Self { limit, value, reason } = self;
        info!(
            target: AUDIT,
            event = "admin_change",
            caller,
            call,
            limit = limit.as_deref(),
            value = &**value,
            reason = reason.as_deref(),
            "changed on the admin port"
        );
    }

    /// A kill switch that is now on or off.
    pub(super) fn of_switch(switch: &Switch, is_on: bool, reason: Option<String>) -> Self {
        let state = if is_on { "not enforced" } else { "enforced" };
        let (limit, value) = match switch {
            Switch::All => (None, format!("all limits {state}")),
            Switch::Domain(name) => (None, format!("domain {name} {state}")),
            Switch::Limit(id) => (Some(id.clone()), state.to_owned()),
        };
        Self { limit, value, reason }
    }
}
