//! Chooses the upstream of a request, and one of its addresses.
//!
//! Of two random addresses, the one with fewer requests in progress gets the request.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use hyper::header::HOST;
use hyper::http::request::Parts;
use tidegate::Clock;
use tidegate::policy::{RequestTarget, normal_host};
use tidegate_core::client::RetryBudget;

use super::address::{Address, Outcome};
use super::connect::Connector;
use super::pool::{NoConnection, Pool, WhenFull};
use super::send::Leased;
use crate::settings::{self, Gateway, Route};

/// The most addresses that a request tries.
const MAX_ADDRESSES: u32 = 3;

/// The upstreams of the process.
#[derive(Debug)]
pub(crate) struct Upstreams {
    all: Vec<Arc<Upstream>>,
    /// In the order in which they are compared with requests.
    routes: Vec<Route>,
    needs_path: bool,
}

/// One upstream, with the state that all workers share.
#[derive(Debug)]
pub(crate) struct Upstream {
    pub(crate) settings: settings::Upstream,
    pub(crate) addresses: Vec<Arc<Address>>,
    pub(super) connector: Arc<Connector>,
}

impl Upstreams {
    /// Reads the certificates of the upstreams. The error names the upstream.
    pub(crate) fn new(gateway: &Gateway) -> Result<Self, String> {
        let all = gateway.upstreams.iter().map(|settings| {
            let connector = Connector::new(settings)
                .map_err(|why| format!("upstream {}: {why}", settings.name))?;
            let eject_for = (settings.addresses.len() > 1).then_some(settings.eject_for);
            let addresses = settings.addresses.iter();
            Ok(Arc::new(Upstream {
                addresses: addresses
                    .map(|address| Address::new(address.clone(), &settings.name, eject_for))
                    .collect(),
                connector: Arc::new(connector),
                settings: settings.clone(),
            }))
        });
        let mut routes = gateway.routes.clone();
        routes.sort_by(|one, other| one.order().cmp(&other.order()));
        let needs_path = routes.iter().any(Route::needs_path);
        Ok(Self { all: all.collect::<Result<_, String>>()?, routes, needs_path })
    }

    pub(crate) fn all(&self) -> &[Arc<Upstream>] {
        &self.all
    }

    /// The most connections of this many workers together.
    pub(crate) fn max_connections(&self, workers: usize) -> usize {
        let of_one = |upstream: &Arc<Upstream>| {
            let connections = upstream.settings.connections_of_worker(workers);
            connections.saturating_mul(workers).saturating_mul(upstream.addresses.len())
        };
        self.all.iter().map(of_one).fold(0, usize::saturating_add)
    }
}

/// The connections of one worker to all upstreams.
#[derive(Clone, Debug)]
pub(crate) struct Pools(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    upstreams: Arc<Upstreams>,
    pools: Vec<UpstreamPool>,
}

/// The connections of one worker to one upstream.
#[derive(Debug)]
pub(super) struct UpstreamPool {
    pub(super) upstream: Arc<Upstream>,
    /// In the order of its addresses.
    pools: Vec<Pool>,
    /// Bounds the repetitions of requests that an address may have processed.
    retries: Mutex<RetryBudget>,
    clock: Clock,
}

/// Why a request has no upstream.
#[derive(Debug)]
pub(super) enum NoRoute {
    /// No route matches.
    Unknown,
    /// Servers would read the path in different ways.
    Ambiguous(&'static str),
}

impl Pools {
    /// The pools of one of `workers` workers.
    pub(crate) fn new(upstreams: Arc<Upstreams>, workers: usize) -> Self {
        let pools = upstreams.all.iter().map(|upstream| {
            let connections = upstream.settings.connections_of_worker(workers);
            let pool = |address: &Arc<Address>| {
                Pool::new(Arc::clone(address), Arc::clone(&upstream.connector), connections)
            };
            let pools = upstream.addresses.iter().map(pool).collect();
            let (upstream, retries) = (Arc::clone(upstream), Mutex::default());
            UpstreamPool { upstream, pools, retries, clock: Clock::default() }
        });
        let pools = pools.collect();
        Self(Arc::new(Shared { upstreams, pools }))
    }

    /// The upstream of a request.
    pub(super) fn route(&self, head: &Parts) -> Result<&UpstreamPool, NoRoute> {
        let Upstreams { routes, needs_path, .. } = &*self.0.upstreams;
        let host = head.headers.get(HOST).and_then(|host| host.to_str().ok()).unwrap_or_default();
        let host = normal_host(host);
        let target = head.uri.path_and_query().map_or("/", |target| target.as_str());
        let target = needs_path
            .then(|| RequestTarget::parse(target))
            .transpose()
            .map_err(|wrong| NoRoute::Ambiguous(wrong.reason()))?;
        let path = target.as_ref().map_or("/", RequestTarget::path);
        let route = routes.iter().find(|route| route.matches(&host, path));
        route.and_then(|route| self.0.pools.get(route.upstream)).ok_or(NoRoute::Unknown)
    }
}

/// Which connection to an address a request wants.
#[derive(Clone, Copy, Debug)]
enum Wanted {
    /// A kept one, or a new one.
    Any(WhenFull),
    New,
}

/// Addresses that a request has tried, one bit for each.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Tried {
    all: u64,
    /// Those that refused a connection, or ended a new one without a response.
    failed: u64,
}

impl Tried {
    const fn has(self, number: usize) -> bool {
        self.all & (1 << number) != 0
    }

    const fn has_failed(self, number: usize) -> bool {
        self.failed & (1 << number) != 0
    }

    const fn is_over(self) -> bool {
        self.all.count_ones() >= MAX_ADDRESSES
    }

    const fn add(&mut self, number: usize) {
        self.all |= 1 << number;
    }

    /// Records that an address does not serve this request.
    pub(super) const fn fail(&mut self, number: usize) {
        self.failed |= 1 << number;
    }
}

impl UpstreamPool {
    /// A connection to an address that was not tried. If connecting fails, or all connections to
    /// the address are in use, another address is tried. If no address has a free connection, the
    /// request waits for one of the first address, or gets [`NoConnection::Busy`].
    pub(super) async fn lease(
        &self,
        tried: &mut Tried,
        when_full: WhenFull,
    ) -> Result<Leased, NoConnection> {
        let (mut full, mut failed) = (None, None);
        while !tried.is_over() {
            let Some(number) = self.choose(*tried) else { break };
            tried.add(number);
            match self.lease_at(number, Wanted::Any(WhenFull::GoOn)).await {
                Err(NoConnection::Busy) => full = full.or(Some(number)),
                Err(error) => {
                    tried.fail(number);
                    failed = Some(error);
                }
                leased => return leased,
            }
        }
        let waited = match (full, when_full) {
            (Some(number), WhenFull::Wait) => self.lease_at(number, Wanted::Any(when_full)).await,
            _ => Err(NoConnection::Busy),
        };
        match (waited, failed) {
            (Err(NoConnection::Busy), Some(failed)) => Err(failed),
            (waited, _) => waited,
        }
    }

    fn retries(&self) -> MutexGuard<'_, RetryBudget> {
        self.retries.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Counts a request, but not its repetitions.
    pub(super) fn count_request(&self) {
        self.retries().requested(self.clock.now());
    }

    /// Takes a repetition of a request that an address may have processed, if one is left.
    pub(super) fn take_retry(&self) -> bool {
        self.retries().take(self.clock.now())
    }

    /// A new connection to an address.
    pub(super) async fn lease_again(&self, number: usize) -> Result<Leased, NoConnection> {
        self.lease_at(number, Wanted::New).await
    }

    async fn lease_at(&self, number: usize, wanted: Wanted) -> Result<Leased, NoConnection> {
        let (Some(pool), Some(address)) =
            (self.pools.get(number), self.upstream.addresses.get(number))
        else {
            return Err(NoConnection::Busy);
        };
        let in_progress = address.begin();
        let leased = match wanted {
            Wanted::New => pool.lease_again(WhenFull::Wait).await,
            Wanted::Any(when_full) => pool.lease(when_full).await,
        };
        let why = match leased {
            Ok((lease, is_reused)) => {
                return Ok(Leased::new(lease, is_reused, number, in_progress));
            }
            Err(why) => why,
        };
        match (&why, wanted) {
            (NoConnection::Failed(_), _) => address.record(Outcome::ConnectFailed),
            // Another address may have a free connection.
            (NoConnection::Busy, Wanted::Any(WhenFull::GoOn)) => {}
            (NoConnection::Busy, _) => address.record(Outcome::Busy),
        }
        Err(why)
    }

    /// Chooses among the available addresses that were not tried. An unavailable address is chosen
    /// only if no address is available: a request that has tried an available one waits for it.
    fn choose(&self, tried: Tried) -> Option<usize> {
        let addresses = &self.upstream.addresses;
        if let [_] = addresses.as_slice() {
            return (!tried.has(0)).then_some(0);
        }
        let chosen =
            choose(addresses, |number, address| !tried.has(number) && address.is_available());
        if chosen.is_some() {
            return chosen;
        }
        let (mut has_tried, mut has_untried) = (false, false);
        for (number, address) in addresses.iter().enumerate() {
            if address.is_in_use() && !tried.has_failed(number) {
                (has_tried, has_untried) =
                    (has_tried || tried.has(number), has_untried || !tried.has(number));
            }
        }
        if has_tried {
            return None;
        }
        // An address whose share grows is better than an ejected one.
        choose(addresses, |number, address| {
            !tried.has(number) && (address.is_in_use() || !has_untried)
        })
    }
}

/// Of two random addresses, the one with fewer requests in progress.
fn choose(addresses: &[Arc<Address>], may_be: impl Fn(usize, &Address) -> bool) -> Option<usize> {
    let (mut seen, mut one, mut other) = (0, None, None);
    for found in addresses.iter().enumerate().filter(|(number, address)| may_be(*number, address)) {
        seen += 1;
        // All pairs are equally likely.
        match seen {
            1 => one = Some(found),
            2 => other = Some(found),
            _ => match fastrand::usize(..seen) {
                0 => one = Some(found),
                1 => other = Some(found),
                _ => {}
            },
        }
    }
    let number = match (one?, other) {
        ((one, _), None) => one,
        ((one, first), Some((other, second))) => {
            let (first, second) = (first.in_progress(), second.in_progress());
            let is_first = first < second || (first == second && fastrand::bool());
            if is_first { one } else { other }
        }
    };
    Some(number)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::settings::UpstreamAddress;

    fn addresses() -> Vec<Arc<Address>> {
        let address = |number: u16| {
            let settings = UpstreamAddress { host: "a".into(), port: number };
            Address::new(settings, "api", None)
        };
        (1..=4).map(address).collect()
    }

    /// Connections, not requests in progress, may be short at the address that is chosen.
    #[tokio::test]
    async fn an_address_without_a_free_connection_is_passed_over() {
        let listeners = [listener().await, listener().await];
        let urls = listeners.each_ref().map(|(_, url)| url.clone());
        let mut settings = settings::Upstream::new("api", &urls).unwrap();
        settings.max_connections = 1;
        let upstreams = Upstreams::new(&Gateway::new(settings)).unwrap();
        let pools = Pools::new(Arc::new(upstreams), 1);
        let pool = &pools.0.pools[0];
        let held = pool.lease(&mut Tried::default(), WhenFull::Wait).await.unwrap();
        let free = 1 - held.number;
        let _busier: Vec<_> = (0..5).map(|_| pool.upstream.addresses[free].begin()).collect();
        let leased = pool.lease(&mut Tried::default(), WhenFull::Wait).await.unwrap();
        assert_eq!(leased.number, free);
        // A request that finds none waits for the first one that is free.
        let mut tried = Tried::default();
        let (waited, ()) = tokio::join!(pool.lease(&mut tried, WhenFull::Wait), async {
            tokio::task::yield_now().await;
            drop((held, leased));
        });
        assert!(waited.is_ok());
    }

    /// An unavailable address may hang. A request that has tried an available one waits for it.
    #[tokio::test(start_paused = true)]
    async fn an_unavailable_address_is_chosen_only_if_none_is_available() {
        let urls = ["http://a:1", "http://b:1"].map(String::from);
        let settings = settings::Upstream::new("api", &urls).unwrap();
        let upstreams = Upstreams::new(&Gateway::new(settings)).unwrap();
        let pools = Pools::new(Arc::new(upstreams), 1);
        let pool = &pools.0.pools[0];
        let [first, second] = &*pool.upstream.addresses else { unreachable!() };
        let mut tried = Tried::default();
        let eject = |address: &Arc<Address>| {
            (0..5).for_each(|_| address.record(Outcome::TimedOut));
        };
        assert_eq!(pool.choose(tried).map(|_| tried.add(0)), Some(()));
        assert_eq!(pool.choose(tried), Some(1));
        eject(second);
        assert_eq!((pool.choose(tried), pool.choose(Tried::default())), (None, Some(0)));
        // Its share has grown to a tenth.
        tokio::time::sleep(std::time::Duration::from_millis(10_500)).await;
        assert!(second.is_in_use());
        let chosen = (0..1_000).filter(|_| pool.choose(tried).is_some()).count();
        assert!((20..300).contains(&chosen), "{chosen}");
        // It is better than an unhealthy one, whatever its share.
        first.set_healthy(false, "");
        assert!((0..100).all(|_| pool.choose(Tried::default()) == Some(1)));
        second.set_healthy(false, "");
        assert_eq!(pool.choose(tried), Some(1));
        first.set_healthy(true, "");
        assert_eq!(pool.choose(tried), None);
        tried.fail(0);
        assert_eq!(pool.choose(tried), Some(1));
    }

    async fn listener() -> (tokio::net::TcpListener, String) {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        (listener, url)
    }

    #[test]
    fn of_two_random_addresses_the_one_with_fewer_requests_is_chosen() {
        let addresses = addresses();
        let _busy: Vec<_> = (0..10).map(|_| addresses[1].begin()).collect();
        let mut counts = [0; 4];
        for _ in 0..4_000 {
            counts[choose(&addresses, |_, _| true).unwrap()] += 1;
        }
        assert_eq!(counts[1], 0);
        assert!([0, 2, 3].iter().all(|number| counts[*number] > 1_000), "{counts:?}");
        assert_eq!(choose(&addresses, |number, _| number == 1), Some(1));
        assert_eq!(choose(&addresses, |_, _| false), None);
    }
}
