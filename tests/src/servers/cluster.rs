//! A cluster of three primaries, each with a replica.

mod migration;
mod view;

use std::time::Duration;

use super::builder::Builder;
use super::outage::LastOutage;
use super::server::RedisServer;
use super::waiting::comes_true;
use view::View;

const PRIMARIES: usize = 3;
const NODES: usize = 2 * PRIMARIES;
const SLOTS: usize = 16_384;
/// Time until all nodes know each other and all replicas are in step: three seconds on an idle
/// machine.
const SETTLE_LIMIT: Duration = Duration::from_secs(30);

/// Six nodes, all of which are stopped on drop.
#[derive(Debug)]
pub struct Cluster {
    nodes: Vec<Node>,
    outage: LastOutage,
}

#[derive(Debug)]
struct Node {
    server: RedisServer,
    /// Kept on disk, so the id is the same after a restart.
    id: String,
}

impl Cluster {
    /// Starts six nodes that fail over after a second, and returns once they agree.
    pub fn start() -> Self {
        Self::start_with(&RedisServer::builder())
    }

    /// Like [`Cluster::start`], with the program and directives of `builder` for each node.
    pub fn start_with(builder: &Builder) -> Self {
        let builder = builder
            .clone()
            .node()
            .arg("cluster-node-timeout", "1000")
            .arg("cluster-require-full-coverage", "no")
            // A replica may take over after any time without contact.
            .arg("cluster-replica-validity-factor", "0")
            // Replicas stay with their primary.
            .arg("cluster-migration-barrier", "1000");
        let start = || {
            let server = builder.start();
            let id = server.text(&["CLUSTER", "MYID"]);
            Node { server, id }
        };
        let nodes = std::iter::repeat_with(start).take(NODES).collect();
        let cluster = Self { nodes, outage: LastOutage::default() };
        cluster.introduce();
        cluster.share_slots();
        cluster.attach_replicas();
        cluster.wait_until_settled(SETTLE_LIMIT);
        cluster
    }

    /// Introduces every node to every other, which is faster than gossip.
    fn introduce(&self) {
        for (number, node) in self.nodes.iter().enumerate() {
            // Refused once a node has met another.
            let epoch = (number + 1).to_string();
            node.server.command(&["CLUSTER", "SET-CONFIG-EPOCH", &epoch]);
        }
        for node in &self.nodes {
            for other in self.nodes.iter().filter(|other| other.id != node.id) {
                let port = other.server.port().to_string();
                node.server.command(&["CLUSTER", "MEET", "127.0.0.1", &port]);
            }
        }
    }

    fn share_slots(&self) {
        for (number, node) in self.nodes[..PRIMARIES].iter().enumerate() {
            let slots = SLOTS * number / PRIMARIES..SLOTS * (number + 1) / PRIMARIES;
            let slots: Vec<String> = slots.map(|slot| slot.to_string()).collect();
            let words = ["CLUSTER", "ADDSLOTS"].into_iter();
            let words: Vec<&str> = words.chain(slots.iter().map(String::as_str)).collect();
            node.server.command(&words);
        }
    }

    fn attach_replicas(&self) {
        let (primaries, replicas) = self.nodes.split_at(PRIMARIES);
        for (primary, replica) in primaries.iter().zip(replicas) {
            // Refused until the two have shaken hands.
            let attach = ["CLUSTER", "REPLICATE", &primary.id];
            if !comes_true(SETTLE_LIMIT, || replica.server.try_command(&attach).is_ok()) {
                replica.server.panic("it did not become a replica");
            }
        }
    }

    /// Returns once all nodes that can answer serve requests, replicate, and name the same owners.
    pub fn wait_until_settled(&self, limit: Duration) {
        let mut unsettled = &self.nodes[0];
        let settles = comes_true(limit, || {
            let view = self.answering().find_map(|node| View::of(&node.server));
            let Some(view) = view else { return false };
            let node = self.answering().find(|node| !node.is_settled(&view));
            unsettled = node.unwrap_or(unsettled);
            node.is_none()
        });
        if !settles {
            unsettled.server.panic(&format!("the cluster did not settle in {limit:?}"));
        }
    }

    /// `127.0.0.1:port` of every node; the first three were primaries at the start.
    pub fn addresses(&self) -> Vec<String> {
        self.servers().map(RedisServer::address).collect()
    }

    /// All nodes, in any role and state.
    pub fn servers(&self) -> impl Iterator<Item = &RedisServer> {
        self.nodes.iter().map(|node| &node.server)
    }

    /// The URL for clients under test.
    pub fn url(&self) -> String {
        format!("redis+cluster://{}", self.addresses().join(","))
    }

    /// The slot of a key, as the servers compute it.
    pub fn slot_of(&self, key: &str) -> u16 {
        let node = self.answering().next().expect("one node answers");
        let slot = node.server.command(&["CLUSTER", "KEYSLOT", key]);
        redis::from_redis_value(slot).expect("KEYSLOT answers a number")
    }

    /// The owner of the slot in the newest view of the answering nodes; it may be down.
    pub fn primary_of(&self, slot: u16) -> &RedisServer {
        &self.owner_of(slot).server
    }

    /// A primary that does not own the slot, to migrate it to.
    pub fn other_primary(&self, slot: u16) -> &RedisServer {
        let owner = self.owner_of(slot);
        let is_primary =
            |node: &&Node| View::of(&node.server).is_some_and(|view| view.is_primary(&node.id));
        let mut others = self.answering().filter(|node| node.id != owner.id);
        &others.find(is_primary).expect("there are three primaries").server
    }

    /// Kills the primary of the slot and returns it at once, before a replica is promoted.
    pub fn failover(&self, slot: u16) -> &RedisServer {
        let primary = self.primary_of(slot);
        self.outage.begin(primary, RedisServer::kill);
        primary
    }

    /// Pauses the primary of the slot and returns it. The others take it for dead until it is
    /// resumed.
    pub fn pause_primary_of(&self, slot: u16) -> &RedisServer {
        let primary = self.primary_of(slot);
        self.outage.begin(primary, RedisServer::pause);
        primary
    }

    /// Returns the time from the last [`failover`](Self::failover) or
    /// [`pause_primary_of`](Self::pause_primary_of) until another node reports that it owns the
    /// slot.
    pub fn wait_for_promotion(&self, slot: u16, limit: Duration) -> Duration {
        let claims = |node: &&Node| {
            View::of(&node.server).is_some_and(|view| view.owner_of(slot) == Some(&node.id))
        };
        let successor = || self.answering().find(claims).map(|node| &node.server);
        self.outage.wait_for_successor(limit, successor).unwrap_or_else(|| {
            let witness = self.answering().next().expect("one node answers");
            witness.server.panic(&format!("no replica was promoted for slot {slot} in {limit:?}"))
        })
    }

    fn answering(&self) -> impl Iterator<Item = &Node> {
        self.nodes.iter().filter(|node| node.server.is_answering())
    }

    fn owner_of(&self, slot: u16) -> &Node {
        let views = self.answering().filter_map(|node| View::of(&node.server));
        let owner = views.filter_map(|view| view.newest_owner_of(slot)).max();
        let (_, id) = owner.unwrap_or_else(|| panic!("no node knows an owner of slot {slot}"));
        self.nodes.iter().find(|node| node.id == id).expect("the owner is one of the nodes")
    }
}

impl Node {
    /// Whether the node serves requests, agrees with `view` on the owners, and is in step with its
    /// counterpart.
    fn is_settled(&self, view: &View) -> bool {
        let Some(own) = View::of(&self.server) else { return false };
        let serves = self.server.text(&["CLUSTER", "INFO"]).contains("cluster_state:ok");
        let is_in_step = match self.server.info("role").as_str() {
            "slave" => self.server.info("master_link_status") == "up",
            _ => own.answering_replicas_of(&self.id) == self.online_replicas(),
        };
        serves && is_in_step && own.len() == NODES && own.agrees_with(view)
    }

    fn online_replicas(&self) -> usize {
        let replication = self.server.text(&["INFO", "replication"]);
        replication.matches("state=online").count()
    }
}
