//! Logs conditions of the servers that weaken limits: when one is first seen, and when it has ended.
//!
//! The store keeps the list of conditions, and metrics and status read it there. This task has the store
//! look at its servers: as soon as one answers, and then every [`EACH`].

use std::pin::pin;
use std::time::Duration;

use tidegate::store::redis::{Condition, Finding};
use tokio::sync::watch;
use tokio::time::timeout;

use crate::gate::Gate;
use crate::log::{Event, Level, Log};

/// The time between two looks at the list.
const LOOK: Duration = Duration::from_millis(500);

/// The time between two looks at the servers.
const EACH: Duration = Duration::from_secs(60);

/// Runs until the daemon stops; ends at once if all state is in this process.
pub(crate) async fn watch(gate: Gate, mut stopped: watch::Receiver<bool>) {
    let Some(store) = gate.watched().map(|watched| watched.store()) else { return };
    let stopping = async { stopped.wait_for(|stopped| *stopped).await.is_ok() };
    let (mut stopping, mut reported) = (pin!(stopping), Reported::default());
    let each = EACH.as_millis() / LOOK.as_millis();
    let mut looks = 0;
    loop {
        reported.report(store.findings(), gate.status().log());
        if timeout(LOOK, stopping.as_mut()).await.is_ok() {
            return;
        }
        looks += 1;
        if looks >= each || !store.is_inspected() {
            looks = 0;
            // What is wrong with a server is reported by the requests that it fails, and a server that
            // does not answer keeps its findings.
            let _ = store.inspect().await;
        }
    }
}

/// The findings that the log has. A server has at most one of each condition, whatever its words.
#[derive(Debug, Default)]
struct Reported(Vec<Finding>);

impl Reported {
    fn report(&mut self, findings: Vec<Finding>, log: &Log) {
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
