//! The map from slots to cluster nodes, updated as slots move and nodes fail.

use std::collections::HashMap;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Duration;

use arc_swap::ArcSwap;
use redis::{ConnectionAddr, ConnectionInfo, Value};
use tokio::sync::Notify;
use tokio::task::{JoinHandle, JoinSet};
use tokio::time::{sleep, timeout};

use crate::store::redis::config::{RedisConfig, Tls, at};
use crate::store::redis::routing::server_queue::ServerQueue;
use crate::store::redis::wire::connection::{Target, open};
use crate::store::redis::wire::deadline::listen;
use crate::store::redis::wire::name::SLOTS;
use crate::store::redis::wire::request::Request;
use crate::store::{Misconfigured, StoreError};

/// The shortest interval between two requests for the slot map.
const LOOKS_APART: Duration = Duration::from_millis(50);
/// The longest interval between two requests for the slot map.
const LOOKS_ANYWAY: Duration = Duration::from_secs(5);
/// The most nodes that are asked for the slot map at once.
const MOST_ASKED: usize = 5;

/// A cluster: its slot map, and a [`ServerQueue`] for each primary.
#[derive(Debug)]
pub(in crate::store::redis) struct Cluster {
    config: RedisConfig,
    seeds: Vec<ConnectionInfo>,
    settled: Arc<AtomicBool>,
    map: ArcSwap<Map>,
    server_queues: Mutex<HashMap<String, Arc<ServerQueue>>>,
    stale: Arc<Notify>,
    follows: OnceLock<JoinHandle<()>>,
}

/// The server queue of every slot.
#[derive(Debug)]
struct Map(Box<[Option<Arc<ServerQueue>>]>);

/// Slots `first..=last` are served by this primary.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Range {
    first: u16,
    last: u16,
    host: String,
    port: u16,
}

/// The slot maps that nodes returned, and how many nodes returned each.
struct Votes {
    voters: usize,
    maps: Vec<(Vec<Range>, usize)>,
}

impl Votes {
    const fn of(voters: usize) -> Self {
        Self { voters, maps: Vec::new() }
    }

    /// Counts a vote; true if outstanding answers cannot change the outcome.
    fn settle(&mut self, ranges: Vec<Range>) -> bool {
        let place = self.maps.iter().position(|(known, _)| *known == ranges);
        let place = place.unwrap_or_else(|| {
            self.maps.push((ranges, 0));
            self.maps.len() - 1
        });
        self.maps[place].1 += 1;
        self.maps[place].1 * 2 > self.voters
    }

    fn most(self) -> Option<Vec<Range>> {
        self.maps.into_iter().max_by_key(|(_, votes)| *votes).map(|(ranges, _)| ranges)
    }
}

impl Cluster {
    /// Discovers the nodes, and keeps the slot map up to date from then on.
    pub(in crate::store::redis) async fn start(
        config: &RedisConfig,
        seeds: &[ConnectionInfo],
        settled: Arc<AtomicBool>,
    ) -> Result<Arc<Self>, StoreError> {
        let cluster = Arc::new(Self {
            config: config.clone(),
            seeds: seeds.to_vec(),
            settled,
            map: ArcSwap::from_pointee(Map(vec![None; usize::from(SLOTS)].into())),
            server_queues: Mutex::default(),
            stale: Arc::default(),
            follows: OnceLock::new(),
        });
        match cluster.update_map().await {
            Err(error) if error.is_outage() && config.starts_alone => {}
            looked => looked?,
        }
        let (weak, stale) = (Arc::downgrade(&cluster), Arc::clone(&cluster.stale));
        let follows = tokio::spawn(async move {
            loop {
                // The task must not keep an unused cluster alive.
                let _ = timeout(LOOKS_ANYWAY, stale.notified()).await;
                let Some(cluster) = weak.upgrade() else { return };
                // If the slot map is unavailable now, the next request triggers another attempt.
                let _ = cluster.update_map().await;
                drop(cluster);
                sleep(LOOKS_APART).await;
            }
        });
        // No other task has a reference to the cluster yet.
        let _ = cluster.follows.set(follows);
        Ok(cluster)
    }

    pub(in crate::store::redis) fn submit(&self, request: Request) {
        self.submit_all(request.slot, vec![request]);
    }

    /// Sends requests of one slot together.
    pub(in crate::store::redis) fn submit_all(&self, slot: u16, requests: Vec<Request>) {
        let server_queue = self.map.load().0[usize::from(slot)].clone();
        match server_queue {
            Some(server_queue) => server_queue.submit_all(requests),
            None => {
                self.request_update();
                let error = StoreError::unavailable(format!("no node serves slot {slot}"));
                requests.into_iter().for_each(|request| request.fail(error.clone()));
            }
        }
    }

    /// Sends a redirected request to the node that the redirection names.
    pub(in crate::store::redis) fn send_on(
        self: &Arc<Self>,
        host: &str,
        port: u16,
        request: Request,
    ) {
        if !request.asking {
            self.request_update();
        }
        self.server_queue(host, port).submit(request);
    }

    /// Triggers an update of the slot map.
    pub(in crate::store::redis) fn request_update(&self) {
        self.stale.notify_one();
    }

    pub(in crate::store::redis) fn server_queues(&self) -> Vec<Arc<ServerQueue>> {
        let server_queues = self.server_queues.lock().unwrap_or_else(PoisonError::into_inner);
        server_queues.values().cloned().collect()
    }

    /// The number of the node that serves a slot; that of the first node if none does.
    pub(in crate::store::redis) fn number(&self, slot: u16) -> usize {
        self.map.load().0[usize::from(slot)].as_ref().map_or(0, |server_queue| server_queue.number)
    }

    /// The server queue of the node that serves a slot.
    pub(in crate::store::redis) fn queue_of(&self, slot: u16) -> Option<Arc<ServerQueue>> {
        self.map.load().0[usize::from(slot)].clone()
    }

    /// Selects one of these values, each with its slot, for each node.
    pub(in crate::store::redis) fn one_each<T>(
        &self,
        values: impl Iterator<Item = (u16, T)>,
    ) -> Vec<T> {
        let map = self.map.load();
        let mut met: Vec<*const ServerQueue> = Vec::new();
        let fresh = values.filter_map(|(slot, value)| {
            let server_queue = Arc::as_ptr(map.0[usize::from(slot)].as_ref()?);
            (!met.contains(&server_queue)).then(|| {
                met.push(server_queue);
                value
            })
        });
        fresh.collect()
    }

    fn server_queue(self: &Arc<Self>, host: &str, port: u16) -> Arc<ServerQueue> {
        let mut server_queues = self.server_queues.lock().unwrap_or_else(PoisonError::into_inner);
        // The lowest free number; the number of a removed node is used again.
        let is_free = |number: &usize| {
            server_queues.values().all(|server_queue| server_queue.number != *number)
        };
        let number = (0..).find(is_free).unwrap_or_default();
        let server_queue = server_queues.entry(format!("{host}:{port}")).or_insert_with(|| {
            let target = Target::Node(at(&self.seeds[0], host, port));
            let cluster = (Arc::downgrade(self), number);
            Arc::new(ServerQueue::start(&self.config, target, Arc::clone(&self.settled), cluster))
        });
        Arc::clone(server_queue)
    }

    /// Asks several nodes for the slot map and takes the majority's, because a node that was
    /// partitioned may return an old map.
    async fn update_map(self: &Arc<Self>) -> Result<(), StoreError> {
        let nodes = self.nodes_to_ask();
        let (mut asked, mut votes) = (JoinSet::new(), Votes::of(nodes.len()));
        for node in nodes {
            let (tls, connect_timeout) = (self.config.tls.clone(), self.config.connect_timeout);
            asked.spawn(async move { ask(&node, &tls, connect_timeout).await });
        }
        let mut trouble = StoreError::unavailable("no node of the cluster answers");
        while let Some(answer) = asked.join_next().await {
            match answer {
                Ok(Ok(ranges)) if ranges.is_empty() => {
                    trouble = StoreError::unavailable("the cluster serves no slot yet");
                }
                Ok(Ok(ranges)) => {
                    if votes.settle(ranges) {
                        break;
                    }
                }
                Ok(Err(error @ StoreError::Misconfigured(..))) => trouble = error,
                Ok(Err(error)) if trouble.is_outage() => trouble = error,
                Ok(Err(_)) | Err(_) => {}
            }
        }
        self.install(votes.most().ok_or(trouble)?);
        Ok(())
    }

    /// Some of the known nodes, different ones each time, and of the configured nodes if there are
    /// too few.
    fn nodes_to_ask(&self) -> Vec<ConnectionInfo> {
        let mut known: Vec<String> = self
            .server_queues()
            .iter()
            .map(|server_queue| server_queue.connection.address())
            .collect();
        fastrand::shuffle(&mut known);
        let known = known.iter().filter_map(|address| {
            let (host, port) = address.rsplit_once(':')?;
            Some(at(&self.seeds[0], host, port.parse().ok()?))
        });
        let mut nodes: Vec<ConnectionInfo> = Vec::new();
        for node in known.chain(self.seeds.iter().cloned()) {
            let is_new = nodes.iter().all(|other| other.addr() != node.addr());
            if is_new && nodes.len() < MOST_ASKED {
                nodes.push(node);
            }
        }
        nodes
    }

    /// Installs a new slot map. Server queues without slots end after their last request.
    fn install(self: &Arc<Self>, ranges: Vec<Range>) {
        let mut slots = vec![None; usize::from(SLOTS)];
        let mut needed = HashMap::new();
        for Range { first, last, host, port } in ranges {
            let server_queue = self.server_queue(&host, port);
            for slot in first..=last.min(SLOTS - 1) {
                slots[usize::from(slot)] = Some(Arc::clone(&server_queue));
            }
            needed.insert(format!("{host}:{port}"), server_queue);
        }
        self.map.store(Arc::new(Map(slots.into())));
        *self.server_queues.lock().unwrap_or_else(PoisonError::into_inner) = needed;
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        self.follows.get().iter().for_each(|follows| follows.abort());
    }
}

async fn ask(
    node: &ConnectionInfo,
    tls: &Tls,
    connect_timeout: Duration,
) -> Result<Vec<Range>, StoreError> {
    let mut connection = open(node.clone(), tls, connect_timeout).await?;
    let mut command = redis::cmd("CLUSTER");
    command.arg("SLOTS");
    let asked = listen(connect_timeout, command.query_async::<Value>(&mut connection)).await;
    match asked {
        Ok(Ok(slots)) => ranges(&slots, &host_of(node))
            .ok_or_else(|| StoreError::protocol(format!("slots {slots:?}"))),
        Ok(Err(error)) if error.to_string().contains("cluster support disabled") => {
            let why = format!("{} is not part of a cluster; use redis://", node.addr());
            Err(StoreError::misconfigured(Misconfigured::Setting, why))
        }
        Ok(Err(error)) => {
            Err(crate::store::redis::failure::Failure::of(&error, node.addr()).into_error())
        }
        Err(_) => Err(StoreError::unavailable(format!("{} is silent", node.addr()))),
    }
}

fn host_of(node: &ConnectionInfo) -> String {
    match node.addr() {
        ConnectionAddr::Tcp(host, _) | ConnectionAddr::TcpTls { host, .. } => host.clone(),
        _ => String::new(),
    }
}

/// Parses `CLUSTER SLOTS`: first and last slot, the primary, and replicas, which are ignored.
fn ranges(slots: &Value, asked: &str) -> Option<Vec<Range>> {
    let Value::Array(slots) = slots else { return None };
    let range = |range: &Value| {
        let Value::Array(range) = range else { return None };
        let [Value::Int(first), Value::Int(last), Value::Array(primary), ..] = &range[..] else {
            return None;
        };
        let host = match primary.first()? {
            Value::BulkString(host) if !host.is_empty() && host != b"?" => {
                String::from_utf8(host.clone()).ok()?
            }
            _ => asked.into(),
        };
        let Value::Int(port) = primary.get(1)? else { return None };
        let [first, last] = [first, last].map(|slot| u16::try_from(*slot).ok());
        Some(Range { first: first?, last: last?, host, port: u16::try_from(*port).ok()? })
    };
    let mut ranges = slots.iter().map(range).collect::<Option<Vec<Range>>>()?;
    // Nodes return ranges in different orders.
    ranges.sort_unstable();
    Some(ranges)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn map(host: &str) -> Vec<Range> {
        vec![Range { first: 0, last: SLOTS - 1, host: host.into(), port: 1 }]
    }

    /// The majority wins in any order of answers.
    #[test]
    fn a_node_that_was_cut_off_is_outvoted() {
        for (answers, settled_after) in
            [(["old", "new", "new"], 3), (["new", "old", "new"], 3), (["new", "new", "old"], 2)]
        {
            let mut votes = Votes::of(3);
            let settled = answers.iter().position(|host| votes.settle(map(host)));
            assert_eq!(settled, Some(settled_after - 1), "{answers:?}");
            assert_eq!(votes.most(), Some(map("new")), "{answers:?}");
        }
    }

    /// An old slot map is better than none.
    #[test]
    fn one_that_answers_alone_has_it_its_way() {
        let mut votes = Votes::of(3);
        assert!(!votes.settle(map("old")));
        assert_eq!(votes.most(), Some(map("old")));
        assert_eq!(Votes::of(3).most(), None);
    }

    #[test]
    fn nodes_with_the_same_ranges_in_another_order_agree() {
        let node = |port| Value::Array(vec![Value::BulkString(b"a".to_vec()), Value::Int(port)]);
        let slots =
            |first, last, port| Value::Array(vec![Value::Int(first), Value::Int(last), node(port)]);
        let [one, other] = [slots(0, 99, 1), slots(100, 16_383, 2)];
        let found = ranges(&Value::Array(vec![one.clone(), other.clone()]), "a");
        assert_eq!(found, ranges(&Value::Array(vec![other, one]), "a"));
        assert_eq!(found.map(|found| found.len()), Some(2));
    }
}
