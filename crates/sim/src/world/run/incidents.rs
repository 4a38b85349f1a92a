//! Faults: how each begins and ends.

use std::io;
use std::sync::Arc;

use super::{DRAINS, Done, LEARNS_WITHIN, Owner, World};
use crate::world::faults::Fault;
use crate::world::machine::executor::lock;
use crate::world::machine::network::Event;
use crate::world::machine::stack::{NodeParts, NodeStack};

impl<S: NodeStack, F: Fn(NodeParts) -> io::Result<S>> World<'_, S, F> {
    /// A fault begins.
    pub(super) fn begin(&mut self, now: u64, number: usize) {
        let incident = self.plan[number];
        self.report.struck(incident.fault);
        match incident.fault {
            Fault::NodeClock => {
                self.nodes[incident.node].wall.step(incident.size, incident.is_back);
            }
            Fault::StoreClock => {
                self.server.clock.step(incident.size, incident.is_back);
                self.judge.clock_set(self.server.clock.at(now));
            }
            Fault::Failover => {
                let lost = self.server.fail_over(now.saturating_sub(incident.size));
                self.judge.failed_over(&lost);
            }
            Fault::Pause => {
                let node = &mut self.nodes[incident.node];
                node.still_until = node.still_until.max(incident.until);
            }
            Fault::Crash => self.crash(incident.node),
            Fault::Restart => {
                let (number, node) = (incident.node, &mut self.nodes[incident.node]);
                if incident.until >= now + 2 * DRAINS && node.body.is_some() {
                    node.is_closing = true;
                    let close = Event::Close { node: number, life: node.life };
                    lock(&self.ground.network).add(now + DRAINS, close);
                }
            }
            Fault::PolicyPush => {
                self.published += 1;
                let revision = self.published;
                self.judge.published(revision);
                for node in 0..self.nodes.len() {
                    let at = now + self.traffic.below(LEARNS_WITHIN);
                    lock(&self.ground.network).add(at, Event::Learn { node, revision });
                    if self.nodes[node].body.is_none() {
                        self.judge.learned(node);
                    }
                }
            }
            _ => {}
        }
        let mut network = lock(&self.ground.network);
        if incident.until > now {
            network.incidents.push(incident);
            network.add(incident.until, Event::End(number));
        }
    }

    /// A caller gives up, and the task of its request is dropped in any state.
    pub(super) fn give_up(&mut self, now: u64, request: usize) {
        let number = self.requests[request].node;
        let (task, node) = (self.impatient[&request], &mut self.nodes[number]);
        if !node.tasks.contains(&task) {
            return;
        }
        if node.still_until > now {
            return lock(&self.ground.network).add(node.still_until, Event::GiveUp(request));
        }
        node.tasks.remove(&task);
        node.tick(now);
        lock(&self.ground.network).asking = Some(request);
        self.executor.drop_task(task);
        self.note_sent();
        self.given_up.insert(request);
        if self.judge.dropped(request) {
            self.report.dropped += 1;
        }
    }

    /// A node that shuts down has answered its open requests.
    pub(super) fn close_node(&mut self, now: u64, number: usize, life: u32) {
        let node = &self.nodes[number];
        let Some(body) = node.body.as_ref().filter(|_| node.life == life) else { return };
        if node.still_until > now {
            let event = Event::Close { node: number, life };
            return lock(&self.ground.network).add(node.still_until + DRAINS, event);
        }
        let store = Arc::clone(&body.store);
        let work = Box::pin(async move {
            store.close().await;
            Done::Closed
        });
        self.adopt(Owner { node: number, request: None }, work);
    }

    /// A node is gone, with all its state.
    pub(super) fn crash(&mut self, number: usize) {
        for task in self.nodes[number].die() {
            self.executor.drop_task(task);
            let Some(request) = self.owners[task].request else { continue };
            // A request that was answered and only releases a place is not dropped.
            if self.judge.dropped(request) {
                self.report.dropped += 1;
            }
        }
        self.judge.restarted(number);
    }

    /// A fault ends.
    pub(super) fn end(&mut self, now: u64, number: usize) {
        let incident = self.plan[number];
        let mut network = lock(&self.ground.network);
        network.incidents.retain(|it| *it != incident);
        let is_down = [Fault::Crash, Fault::Restart]
            .iter()
            .any(|fault| network.until(*fault, Some(incident.node)).is_some());
        if !matches!(incident.fault, Fault::Crash | Fault::Restart) || is_down {
            return;
        }
        let was_running = incident.fault == Fault::Restart && !self.nodes[incident.node].is_closing;
        if was_running && self.nodes[incident.node].body.is_some() {
            return;
        }
        drop(network);
        if self.nodes[incident.node].body.is_some() {
            // The node did not shut down in time.
            self.crash(incident.node);
        }
        let mut network = lock(&self.ground.network);
        let (node, life) = (incident.node, self.nodes[incident.node].life);
        network.add(now, Event::Ask { node, life });
        drop(network);
        self.start(now, node);
    }
}
