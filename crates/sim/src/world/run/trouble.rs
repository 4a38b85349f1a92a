//! What goes wrong, carried out.

use std::io;
use std::sync::Arc;

use super::{DRAINS, Done, LEARNS_WITHIN, Owner, World, revision};
use crate::world::evidence::When;
use crate::world::executor::lock;
use crate::world::fault::Fault;
use crate::world::network::Event;
use crate::world::stack::{NodeParts, NodeStack};

impl<S: NodeStack, F: Fn(NodeParts) -> io::Result<S>> World<'_, S, F> {
    /// Something goes wrong.
    pub(super) fn begin(&mut self, now: u64, number: usize) {
        let incident = self.plan[number];
        self.report.struck(incident.fault);
        let at_store = self.server.clock.at(now);
        match incident.fault {
            Fault::NodeClock => {
                self.nodes[incident.node].wall.step(incident.size, incident.is_back);
            }
            Fault::StoreClock => {
                self.server.clock.step(incident.size, incident.is_back);
                self.checker.clock_set(self.at_store_only(now), at_store);
            }
            Fault::Failover => {
                let since = now.saturating_sub(incident.size);
                let when = self.at_store_only(now);
                self.checker.failed_over(when, since);
                for lost in self.server.fail_over(since) {
                    let revision = revision(&self.limits, &lost.limit).unwrap_or(0);
                    self.checker.lost(when, &lost, revision);
                }
            }
            Fault::Pause => {
                let node = &mut self.nodes[incident.node];
                node.still_until = node.still_until.max(incident.until);
            }
            Fault::Crash => self.crash(now, incident.node),
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
                for node in 0..self.nodes.len() {
                    let at = now + self.traffic.below(LEARNS_WITHIN);
                    lock(&self.ground.network).add(at, Event::Learn { node, revision });
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

    /// A caller waits no longer: whatever is done for it ends where it is, if its node goes on.
    pub(super) fn give_up(&mut self, now: u64, request: usize) {
        let number = self.questions[request].node;
        let (task, node) = (self.impatient[&request], &mut self.nodes[number]);
        if !node.tasks.contains(&task) {
            return;
        }
        if node.still_until > now {
            return lock(&self.ground.network).add(node.still_until, Event::GiveUp(request));
        }
        node.tasks.remove(&task);
        let when = self.when(now, number);
        lock(&self.ground.network).asking = Some(request);
        self.executor.drop_task(task);
        self.see_off(when, number);
        self.given_up.insert(request);
        if self.checker.dropped(when, request) {
            self.report.dropped += 1;
        }
    }

    /// A node stops: nobody asks it any more.
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

    /// The present, as far as it is the same for all.
    const fn at_store_only(&self, now: u64) -> When {
        let at_store = self.server.clock.at(now);
        When { now, at_store, at_node: at_store, supposed: at_store }
    }

    /// It is gone, with all it knew.
    pub(super) fn crash(&mut self, now: u64, number: usize) {
        for task in self.nodes[number].die() {
            self.executor.drop_task(task);
            // Who was answered and only gives back a place is not dropped.
            let Some(request) = self.owners[task].request else { continue };
            if self.checker.dropped(self.at_store_only(now), request) {
                self.report.dropped += 1;
            }
        }
        self.checker.reborn(number);
    }

    /// It is over.
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
            // It has not come to an end in time.
            self.crash(now, incident.node);
        }
        let mut network = lock(&self.ground.network);
        let (node, life) = (incident.node, self.nodes[incident.node].life);
        network.add(now, Event::Ask { node, life });
        drop(network);
        self.start(now, node);
    }
}
