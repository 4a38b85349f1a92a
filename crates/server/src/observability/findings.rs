//! Conditions of the servers that weaken limits, as the log tells them: once when one is first seen,
//! and once when it has ended. The store keeps the list; metrics and status read it there.

use tidegate::store::redis::{Condition, Finding};

use crate::observability::log::{Event, Level, Log};

/// The findings that the log has. A server has at most one of each condition, whatever its words.
#[derive(Debug, Default)]
pub(crate) struct Reported(Vec<Finding>);

impl Reported {
    pub(crate) fn report(&mut self, findings: Vec<Finding>, log: &Log) {
        let is_in = |all: &[Finding], it: &Finding| {
            all.iter().any(|other| (&other.server, other.condition) == (&it.server, it.condition))
        };
        for begun in findings.iter().filter(|it| !is_in(&self.0, it)) {
            log.say(Level::Warn, Event::StoreFinding, begun);
        }
        for ended in self.0.iter().filter(|it| !is_in(&findings, it)) {
            let text = format!("{}: no longer found: {}", ended.server, ended.condition.as_str());
            log.say(Level::Info, Event::StoreFinding, text);
        }
        self.0 = findings;
    }
}

/// How many servers have a condition.
pub(crate) fn count(findings: &[Finding], condition: Condition) -> usize {
    findings.iter().filter(|finding| finding.condition == condition).count()
}
