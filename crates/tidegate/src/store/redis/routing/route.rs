//! The server of each charge.

use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Weak};

use redis::{Cmd, Value};
use tidegate_core::{Limit, Span, Timestamp};
use tokio::sync::oneshot;

use crate::key::{Key, Scope};
use crate::store::redis::config::{RedisConfig, Servers};
use crate::store::redis::failure::Failure;
use crate::store::redis::routing::cluster::Cluster;
use crate::store::redis::routing::server_queue::ServerQueue;
use crate::store::redis::wire::call::{Answered, Item};
use crate::store::redis::wire::connection::Target;
use crate::store::redis::wire::name::{Namer, slot};
use crate::store::redis::wire::request::Request;
use crate::store::{Charge, StoreError};

/// Identifies charges that one script call can decide together.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(in crate::store::redis) struct Route {
    per_second: bool,
    slot: u16,
}

/// The servers for long limits and, if configured, separate ones for limits of a second or less.
#[derive(Debug)]
pub(in crate::store::redis) struct Routes {
    default: Group,
    per_second: Option<Group>,
}

/// Servers that share the keys of one kind of limits.
#[derive(Debug)]
enum Group {
    One(Arc<ServerQueue>),
    Cluster(Arc<Cluster>),
}

impl Routes {
    pub(in crate::store::redis) async fn start(
        config: &RedisConfig,
        settled: Arc<AtomicBool>,
    ) -> Result<Self, StoreError> {
        let per_second = match &config.per_second {
            None => None,
            Some(servers) => Some(Group::start(config, servers, Arc::clone(&settled)).await?),
        };
        Ok(Self { default: Group::start(config, &config.servers, settled).await?, per_second })
    }

    pub(in crate::store::redis) fn of(&self, item: &Item) -> Route {
        let per_second = self.per_second.is_some() && is_per_second(&item.script_args.limit);
        let slot = match self.group(per_second) {
            Group::One(_) => 0,
            Group::Cluster(_) => slot(&item.name),
        };
        Route { per_second, slot }
    }

    /// The number of the server that a charge goes to.
    pub(in crate::store::redis) fn endpoint(&self, namer: &Namer, charge: &Charge<'_>) -> usize {
        let per_second = self.per_second.is_some() && is_per_second(charge.limit);
        let number = match self.group(per_second) {
            Group::One(_) => 0,
            Group::Cluster(cluster) => cluster.number(slot(&namer.name(charge.key))),
        };
        2 * number + usize::from(per_second)
    }

    /// The address of the server of this number.
    pub(in crate::store::redis) fn address(&self, endpoint: usize) -> Option<String> {
        self.server_queue(endpoint).map(|server_queue| server_queue.connection.address())
    }

    /// The queue of the server of this number.
    pub(in crate::store::redis) fn server_queue(
        &self,
        endpoint: usize,
    ) -> Option<Arc<ServerQueue>> {
        match self.group(endpoint % 2 == 1) {
            Group::One(server_queue) => (endpoint < 2).then(|| Arc::clone(server_queue)),
            Group::Cluster(cluster) => cluster
                .server_queues()
                .into_iter()
                .find(|server_queue| server_queue.number == endpoint / 2),
        }
    }

    /// Sends a command about one key that belongs to no limit to the server of that key.
    pub(in crate::store::redis) async fn send_to_key(
        &self,
        key: &[u8],
        command: &Cmd,
    ) -> Result<Value, StoreError> {
        let server_queue = match &self.default {
            Group::One(server_queue) => Some(Arc::clone(server_queue)),
            Group::Cluster(cluster) => cluster.queue_of(slot(key)),
        };
        let none = || StoreError::unavailable(format!("no node serves slot {}", slot(key)));
        let server_queue = server_queue.ok_or_else(none)?;
        let connected = server_queue.connection.connected().await?;
        let sent = server_queue.connection.send(&connected, command).await;
        if let (Err(_), Group::Cluster(cluster)) = (&sent, &self.default) {
            // The slot may have moved: the next command uses the new slot map.
            cluster.request_update();
        }
        sent.map_err(Failure::into_error)
    }

    /// The address of the server of a key that belongs to no limit.
    pub(in crate::store::redis) fn address_of_key(&self, key: &[u8]) -> Option<String> {
        match &self.default {
            Group::One(server_queue) => Some(server_queue.connection.address()),
            Group::Cluster(cluster) => {
                cluster.queue_of(slot(key)).map(|it| it.connection.address())
            }
        }
    }

    fn group(&self, per_second: bool) -> &Group {
        self.per_second.as_ref().filter(|_| per_second).unwrap_or(&self.default)
    }

    /// Sends charges of one route.
    pub(in crate::store::redis) fn submit(
        &self,
        route: Route,
        now: Timestamp,
        items: Vec<Item>,
    ) -> oneshot::Receiver<Result<Answered, StoreError>> {
        let (answer, answered) = oneshot::channel();
        self.send(Request::new(items, route.slot, now, answer), route);
        answered
    }

    /// Sends charges at once, each to be decided separately. Those of one route keep their order
    /// and share commands.
    pub(in crate::store::redis) fn submit_each(
        &self,
        now: Timestamp,
        items: impl Iterator<Item = Item>,
    ) -> Vec<oneshot::Receiver<Result<Answered, StoreError>>> {
        let mut routes: Vec<(Route, Vec<Request>)> = Vec::new();
        let mut each = Vec::new();
        for item in items {
            let route = self.of(&item);
            let (answer, answered) = oneshot::channel();
            let request = Request::new(vec![item], route.slot, now, answer);
            match routes.iter_mut().find(|(known, _)| *known == route) {
                Some((_, requests)) => requests.push(request),
                None => routes.push((route, vec![request])),
            }
            each.push(answered);
        }
        for (route, requests) in routes {
            match self.group(route.per_second) {
                Group::One(server_queue) => server_queue.submit_all(requests),
                Group::Cluster(cluster) => cluster.submit_all(route.slot, requests),
            }
        }
        each
    }

    /// Like [`Routes::submit`], but ignores the answer.
    pub(in crate::store::redis) fn post(&self, route: Route, now: Timestamp, items: Vec<Item>) {
        // Returned units are processed even if the receiver is dropped.
        drop(self.submit(route, now, items));
    }

    fn send(&self, request: Request, route: Route) {
        match self.group(route.per_second) {
            Group::One(server_queue) => server_queue.submit(request),
            Group::Cluster(cluster) => cluster.submit(request),
        }
    }

    /// Every server queue, and whether its server is a cluster node.
    pub(in crate::store::redis) fn server_queues(&self) -> Vec<(Arc<ServerQueue>, bool)> {
        let groups = [Some(&self.default), self.per_second.as_ref()].into_iter().flatten();
        let server_queues = groups.flat_map(|group| match group {
            Group::One(server_queue) => vec![(Arc::clone(server_queue), false)],
            Group::Cluster(cluster) => cluster
                .server_queues()
                .into_iter()
                .map(|server_queue| (server_queue, true))
                .collect(),
        });
        server_queues.collect()
    }

    /// Key texts such that every cluster node serves one of them.
    pub(in crate::store::redis) fn probes(&self, namer: &Namer, scope: Scope) -> Vec<String> {
        let mut probes = vec!["self-test".to_owned()];
        for group in [Some(&self.default), self.per_second.as_ref()].into_iter().flatten() {
            let Group::Cluster(cluster) = group else { continue };
            let texts = (0..10_000).map(|number| format!("self-test:{number}"));
            let slots =
                texts.map(|text| (slot(&namer.name(Key::new(scope, text.as_bytes()))), text));
            probes.extend(cluster.one_each(slots));
        }
        probes
    }
}

impl Group {
    async fn start(
        config: &RedisConfig,
        servers: &Servers,
        settled: Arc<AtomicBool>,
    ) -> Result<Self, StoreError> {
        let target = match servers {
            Servers::One(info) => Target::Fixed(info.clone()),
            Servers::Sentinel(watched) => Target::Primary(watched.clone()),
            Servers::Cluster(seeds) => {
                return Cluster::start(config, seeds, settled).await.map(Self::Cluster);
            }
        };
        Ok(Self::One(Arc::new(ServerQueue::start(config, target, settled, (Weak::new(), 0)))))
    }
}

/// Whether an idle key regains its whole quota within a second.
fn is_per_second(limit: &Limit) -> bool {
    let length = match limit {
        Limit::Bucket(bucket) => Span::from_micros(bucket.fill_time().ticks),
        Limit::FixedWindow(window) => window.length(),
        Limit::SlidingWindow(window) => window.length(),
        Limit::SlidingLog(log) => log.length(),
        _ => return false,
    };
    length <= Span::from_secs(1)
}
