//! Moving a slot from one primary to another, as administrators do.

use std::time::Duration;

use super::super::server::RedisServer;
use super::super::waiting::comes_true;
use super::{Cluster, Node, View};

/// Number of keys moved at once.
const BATCH: &str = "100";
/// Time for the servers to move one batch, in milliseconds.
const BATCH_LIMIT: &str = "5000";
const MIGRATION_LIMIT: Duration = Duration::from_secs(10);

impl Cluster {
    /// Moves the slot with its keys, and returns once every node knows.
    pub fn migrate_slot(&self, slot: u16, to: &RedisServer) {
        self.begin_migration(slot, to);
        self.finish_migration(slot, to);
    }

    /// Opens the slot on both sides: absent keys are answered with ASK, and partly present ones
    /// with TRYAGAIN.
    pub fn begin_migration(&self, slot: u16, to: &RedisServer) {
        let (from, to) = (self.owner_of(slot), self.node_of(to));
        let slot = slot.to_string();
        to.server.command(&["CLUSTER", "SETSLOT", &slot, "IMPORTING", &from.id]);
        from.server.command(&["CLUSTER", "SETSLOT", &slot, "MIGRATING", &to.id]);
    }

    /// Moves some keys of a slot that was opened.
    pub fn migrate_keys(&self, slot: u16, to: &RedisServer, keys: &[&str]) {
        let keys: Vec<_> = keys.iter().map(|key| key.as_bytes().to_vec()).collect();
        move_keys(self.primary_of(slot), to, &keys);
    }

    /// Moves the remaining keys, assigns the slot, and returns once every node knows.
    pub fn finish_migration(&self, slot: u16, to: &RedisServer) {
        let (from, to) = (self.owner_of(slot), self.node_of(to));
        let number = slot.to_string();
        let is_empty = comes_true(MIGRATION_LIMIT, || {
            let keys = from.server.command(&["CLUSTER", "GETKEYSINSLOT", &number, BATCH]);
            let keys: Vec<Vec<u8>> = redis::from_redis_value(keys).expect("a list of keys");
            move_keys(&from.server, &to.server, &keys);
            keys.is_empty()
        });
        if !is_empty {
            from.server.panic(&format!("keys kept coming into slot {slot}"));
        }
        self.announce(slot, from, to);
    }

    /// Informs the new owner first: only the owner may raise the epoch that settles disputes.
    fn announce(&self, slot: u16, from: &Node, to: &Node) {
        let number = slot.to_string();
        let is_bystander = |node: &&Node| {
            ![&from.id, &to.id].contains(&&node.id)
                && View::of(&node.server).is_some_and(|view| view.is_primary(&node.id))
        };
        for node in [to, from].into_iter().chain(self.answering().filter(is_bystander)) {
            node.server.command(&["CLUSTER", "SETSLOT", &number, "NODE", &to.id]);
        }
        // Replicas refuse this command; they learn it from their primary.
        let knows = |node: &Node| {
            View::of(&node.server).is_some_and(|view| view.owner_of(slot) == Some(&to.id))
        };
        if !comes_true(MIGRATION_LIMIT, || self.answering().all(knows)) {
            to.server.panic(&format!("not every node learnt that it owns slot {slot}"));
        }
    }

    fn node_of(&self, server: &RedisServer) -> &Node {
        let node = self.nodes.iter().find(|node| node.server.port() == server.port());
        node.expect("the server is a node of this cluster")
    }
}

fn move_keys(from: &RedisServer, to: &RedisServer, keys: &[Vec<u8>]) {
    if keys.is_empty() {
        return;
    }
    let mut command = redis::cmd("MIGRATE");
    command.arg("127.0.0.1").arg(to.port()).arg("").arg(0).arg(BATCH_LIMIT).arg("KEYS").arg(keys);
    let moved: redis::RedisResult<String> = command.query(&mut from.connection());
    if let Err(error) = moved {
        from.panic(&format!("keys did not move to {}: {error}", to.address()));
    }
}
