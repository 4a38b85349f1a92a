//! The registry of the nodes that share a store: one sorted set in which each node registers every
//! few seconds by the store's clock.
//!
//! It provides the number of nodes that share the limits ([`Nodes`]), and whether all of them have
//! the same policy (`settling.rs`). No decision waits for the registry or fails because of it.
//!
//! # Bounds
//! At most 1,024 nodes, each with at most 16 domains and 1.5 KB. A node that has not registered for
//! three intervals is removed. The set expires with its last node.

use std::collections::{BTreeSet, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use redis::{Cmd, Value};
use tidegate_core::Timestamp;
use tokio::time::{Instant, timeout};

use crate::store::redis::inspection::{Condition, Finding};
use crate::store::redis::routing::route::Routes;
use crate::store::redis::settling::Settling;
use crate::store::redis::wire::entry::{self, MAX_NODES, Node};
use crate::store::{DomainRevision, Nodes, Revisions, StoreError};

/// Intervals after which a silent node is removed.
const LIFETIME: u32 = 3;
/// Intervals for which the largest count is kept. With the lifetime and the time between two reads,
/// a dead node stops counting 12 intervals after its last registration: one minute.
const KEPT: u32 = 8;
/// The shortest interval between registrations; changes of this node's limits are otherwise
/// registered at once.
const SOONEST: Duration = Duration::from_millis(100);

/// The last part of the registry's key, with the version of its format.
const KEY: &str = "nodes:v1";
const SCRIPT: &str = include_str!("lua/registry.lua");

/// The live nodes, as of the last read of the registry.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RegistryReport {
    /// The live nodes, the oldest registration first.
    pub nodes: Vec<Node>,
    /// When the registry was last read, by the store's clock; `None` before the first time.
    pub read_at: Option<Timestamp>,
    /// The error of the last access to the registry, if it failed.
    pub error: Option<StoreError>,
    /// Nodes with another policy for a domain of this node: their ids, and those domains.
    pub lagging: Vec<(String, Vec<DomainRevision>)>,
}

/// This node's part in the registry.
#[derive(Debug)]
pub(super) struct Registry {
    key: String,
    id: String,
    interval: Duration,
    nodes: Nodes,
    revisions: Revisions,
    settling: Arc<Settling>,
    counts: Mutex<Counts>,
    report: Mutex<RegistryReport>,
}

impl Registry {
    pub(super) fn new(
        (namespace, name): (&str, Option<&str>),
        interval: Duration,
        settling: &Arc<Settling>,
    ) -> Arc<Self> {
        Arc::new(Self {
            key: key(namespace),
            id: entry::id(name),
            interval,
            nodes: Nodes::auto(),
            revisions: Revisions::default(),
            settling: Arc::clone(settling),
            counts: Mutex::default(),
            report: Mutex::default(),
        })
    }

    pub(super) fn nodes(&self) -> Nodes {
        self.nodes.clone()
    }

    pub(super) fn revisions(&self) -> Revisions {
        self.revisions.clone()
    }

    pub(super) fn report(&self) -> RegistryReport {
        self.lock().clone()
    }

    /// The fault of the registry, if its server refuses it.
    pub(super) fn finding(&self, routes: &Routes) -> Option<Finding> {
        let error = self.lock().error.clone().filter(|error| !error.is_outage())?;
        let server = routes.address_of_key(self.key.as_bytes()).unwrap_or_default();
        let message =
            format!("the registry {} cannot be used, nodes are not counted: {error}", self.key);
        Some(Finding { server, condition: Condition::Registry, message })
    }

    fn lock(&self) -> MutexGuard<'_, RegistryReport> {
        self.report.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Registers until the store is dropped.
    pub(super) async fn keep(registry: Arc<Self>, routes: Weak<Routes>) {
        let changed = registry.settling.changed();
        loop {
            {
                let Some(routes) = routes.upgrade() else { return };
                registry.turn(&routes).await;
            }
            tokio::time::sleep(SOONEST.min(registry.interval)).await;
            let _ = timeout(registry.interval.saturating_sub(SOONEST), changed.notified()).await;
        }
    }

    /// Registers, and reads the registry.
    pub(super) async fn turn(&self, routes: &Routes) {
        // Read before the policies, so that a later change counts as not compared.
        let change = self.settling.change();
        let held = entry::listed(self.revisions.current().unwrap_or_default());
        let member = Node::write(&self.id, &held);
        let command = self.command(&member);
        let read = match routes.send_to_key(self.key.as_bytes(), &command).await {
            Ok(reply) => read(&reply, &self.id)
                .ok_or_else(|| StoreError::protocol("a registry that Tidegate did not write")),
            Err(error) => Err(error),
        };
        match read {
            Ok((now, nodes)) => {
                let count = u32::try_from(nodes.len()).unwrap_or(u32::MAX);
                let mut counts = self.counts.lock().unwrap_or_else(PoisonError::into_inner);
                self.nodes.set(counts.largest(Instant::now(), count, KEPT * self.interval));
                drop(counts);
                let lagging = lagging(&nodes, &held);
                let others = lagging.iter().flat_map(|(_, domains)| domains.iter().cloned());
                let others: BTreeSet<DomainRevision> = others.collect();
                *self.lock() = RegistryReport { nodes, read_at: Some(now), error: None, lagging };
                // Without a policy there is nothing to compare.
                if !held.is_empty() {
                    self.settling.compared(change, others);
                }
            }
            Err(error) => self.lock().error = Some(error),
        }
    }

    fn command(&self, member: &str) -> Cmd {
        let lifetime = u64::try_from((LIFETIME * self.interval).as_micros()).unwrap_or(u64::MAX);
        let mut command = Cmd::new();
        command.arg("EVAL").arg(SCRIPT).arg(1).arg(&self.key);
        command.arg(&self.id).arg(member).arg(lifetime).arg(MAX_NODES);
        command
    }
}

fn key(namespace: &str) -> String {
    format!("{namespace}:{KEY}")
}

/// Nodes whose policy of a common domain differs from this node's.
fn lagging(nodes: &[Node], held: &[DomainRevision]) -> Vec<(String, Vec<DomainRevision>)> {
    let others = nodes.iter().filter(|node| !node.is_own);
    let differing = others.map(|node| (node.id.clone(), node.differing(held)));
    let lagging = differing.filter(|(_, domains)| !domains.is_empty());
    lagging.map(|(id, domains)| (id, domains.into_iter().collect())).collect()
}

/// Parses a reply: the time, then each member and its score. Skips members of other formats.
fn read(reply: &Value, own: &str) -> Option<(Timestamp, Vec<Node>)> {
    let words: Vec<String> = redis::from_redis_value(reply.clone()).ok()?;
    let (now, members) = words.split_first()?;
    let micros = |text: &str| text.parse().ok().map(Timestamp::from_micros);
    let nodes = members.chunks_exact(2).take(MAX_NODES);
    let nodes = nodes.filter_map(|pair| Node::read(&pair[0], micros(&pair[1])?, own));
    Some((micros(now)?, nodes.collect()))
}

/// Counts of live nodes with their times, decreasing, so that the first is the largest.
#[derive(Debug, Default)]
struct Counts(VecDeque<(Instant, u32)>);

impl Counts {
    /// Adds a count; returns the largest of those that are at most `kept` old.
    fn largest(&mut self, now: Instant, count: u32, kept: Duration) -> u32 {
        self.0.retain(|(at, known)| now.duration_since(*at) <= kept && *known > count);
        self.0.push_back((now, count));
        self.0.front().map_or(count, |(_, largest)| *largest)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_largest_count_is_kept_for_a_while_and_no_longer() {
        let (mut counts, start) = (Counts::default(), Instant::now());
        let mut at = |secs: u64, count| {
            let now = start + Duration::from_secs(secs);
            counts.largest(now, count, Duration::from_secs(40))
        };
        assert_eq!([at(0, 1), at(5, 3), at(10, 2), at(15, 1)], [1, 3, 3, 3]);
        assert_eq!([at(45, 1), at(46, 1), at(51, 1)], [3, 2, 1]);
        assert_eq!(at(55, 4), 4);
        assert!((60..10_000).all(|secs| at(secs, (secs % 7) as u32) <= 6));
        assert!(counts.0.len() <= 7, "smaller counts than a later one are dropped");
    }

    #[test]
    fn members_of_other_formats_are_left_out() {
        let text = |text: &str| Value::BulkString(text.as_bytes().to_vec());
        let reply = ["5000000", "a\n", "4000000", "odd\nodd", "1", "b\n", "5000000"].map(text);
        let (now, nodes) = read(&Value::Array(reply.to_vec()), "b").unwrap();
        assert_eq!(now, Timestamp::from_secs(5));
        let listed_nodes: Vec<_> = nodes.iter().map(|it| (&*it.id, it.is_own, it.seen)).collect();
        let seen = [4, 5].map(Timestamp::from_secs);
        assert_eq!(listed_nodes, [("a", false, seen[0]), ("b", true, seen[1])]);
        assert_eq!(read(&Value::Array(Vec::new()), "b"), None);
    }
}
