//! Conditions of the servers that weaken limits. Each is logged when it is first seen and when it has
//! ended. The store keeps the list; metrics and status read it there.

use tidegate::store::redis::{Condition, Finding};
use tracing::{info, warn};

/// The findings that are logged. A server has at most one finding of each condition.
#[derive(Debug, Default)]
pub(crate) struct Reported(Vec<Finding>);

impl Reported {
    pub(crate) fn report(&mut self, findings: Vec<Finding>) {
        let is_in = |all: &[Finding], it: &Finding| {
            all.iter().any(|other| (&other.server, other.condition) == (&it.server, it.condition))
        };
        for Finding { server, condition, message } in
            findings.iter().filter(|it| !is_in(&self.0, it))
        {
            let condition = condition.as_str();
            warn!(event = "store_finding", server = &**server, condition, "{message}");
        }
        for Finding { server, condition, .. } in self.0.iter().filter(|it| !is_in(&findings, it)) {
            let condition = condition.as_str();
            info!(event = "store_finding_ended", server = &**server, condition, "no longer found");
        }
        self.0 = findings;
    }
}

/// Number of servers with a condition.
pub(crate) fn count(findings: &[Finding], condition: Condition) -> usize {
    findings.iter().filter(|finding| finding.condition == condition).count()
}
