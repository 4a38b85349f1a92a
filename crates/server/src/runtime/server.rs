//! Listeners, and the threads behind them.

use std::fmt;
use std::future::poll_fn;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::pin::pin;
use std::sync::Arc;
use std::task::Poll;
use std::thread::{self, JoinHandle};
use std::time::Duration;

use tokio::runtime;
use tokio::sync::{Semaphore, mpsc, watch};
use tokio::task::JoinSet;
use tracing::{error, info, warn};

use crate::observability::access_log::AccessLog;
use crate::observability::log::{Level, Log};
use crate::observability::outages;
use crate::observability::status::Counters;
use crate::observability::throttle::{Admitted, Frequent};
use crate::runtime::accept::{Accept, Refusal, refuse};
use crate::runtime::fd_limit::Descriptors;
use crate::runtime::listener::{Bound, Inherited, Listener, Socket};
use crate::runtime::tls::{Tls, TlsError};
use crate::runtime::worker::{self, ConnectionSlot, NewConnection};
use crate::service::RateLimitService;
use crate::settings::{Address, Listen, Settings};
use crate::transport::gateway::{self, Upstreams};
use crate::transport::http2::Budget;
use crate::transport::{Protocol, Transport};

/// Maximum number of sockets that wait for a worker.
const MAX_WAITING: usize = 1_024;

/// Pause after a failure to accept because the system is out of resources such as file descriptors.
/// Until a descriptor is closed, another attempt would fail again.
const PAUSE: Duration = Duration::from_millis(50);

/// Number of attempts without a new connection after which a stopping listener is closed.
const LAST_LOOKS: usize = 3;

/// Interval at which certificate files are checked for changes.
const CERTIFICATES: Duration = Duration::from_secs(10);

/// A server that runs until it is stopped or dropped.
#[derive(Debug)]
pub struct Server {
    open: Vec<(Protocol, Address)>,
    stop: watch::Sender<bool>,
    threads: Vec<JoinHandle<()>>,
    /// Finished after the threads have ended, so that their last lines are written.
    access_log: Option<AccessLog>,
}

impl Server {
    /// The protocol and the address of each listener.
    pub fn listeners(&self) -> &[(Protocol, Address)] {
        &self.open
    }

    /// The address of the RESP listener.
    pub fn resp(&self) -> Option<SocketAddr> {
        self.address(Protocol::Resp)
    }

    /// The address of the HTTP listener.
    pub fn http(&self) -> Option<SocketAddr> {
        self.address(Protocol::Http)
    }

    /// The address of the gRPC listener.
    pub fn grpc(&self) -> Option<SocketAddr> {
        self.address(Protocol::Grpc)
    }

    /// The address of the gateway.
    pub fn gateway(&self) -> Option<SocketAddr> {
        self.address(Protocol::Gateway)
    }

    /// The address of the admin listener.
    pub fn admin(&self) -> Option<SocketAddr> {
        self.address(Protocol::Admin)
    }

    fn address(&self, protocol: Protocol) -> Option<SocketAddr> {
        self.open.iter().find_map(|(spoken, address)| match address {
            Address::Tcp(address) if *spoken == protocol => Some(*address),
            _ => None,
        })
    }

    /// Stops the server: accepts no more connections, answers the requests that were read, closes
    /// the connections, and waits for at most [`Settings::drain`].
    pub fn stop(self) {
        // Dropping `self` does the work.
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.stop.send_replace(true);
        for thread in self.threads.drain(..) {
            // A panic of the thread has been logged already.
            let _ = thread.join();
        }
        if let Some(log) = &self.access_log {
            log.finish();
        }
    }
}

/// Starts a server: its listeners are open once this returns.
pub fn serve(settings: &Settings, service: &RateLimitService) -> Result<Server, ServeError> {
    serve_on(settings, service, Vec::new())
}

/// Like [`serve`], on sockets that the parent process has opened, in place of the listeners'
/// addresses.
pub fn serve_on(
    settings: &Settings,
    service: &RateLimitService,
    inherited: Vec<(Protocol, Inherited)>,
) -> Result<Server, ServeError> {
    settings.check()?;
    service.status().show_keys(settings.key_values);
    for (level, text) in settings.exposures() {
        match level {
            Level::Warn => warn!(event = "exposure", "{text}"),
            _ => info!(event = "exposure", "{text}"),
        }
    }
    let upstreams = settings.gateway.as_ref().map(Upstreams::new).transpose();
    let upstreams = upstreams.map_err(ServeError::Upstream)?.map(Arc::new);
    let listening = open_all(settings, service, inherited)?;
    let open =
        listening.iter().map(|open| (open.listener.protocol, open.address.clone())).collect();
    let (stop, stopped) = watch::channel(false);
    // From here on, dropping the server ends the threads that have been started.
    let has_access_log = settings.gateway.as_ref().is_some_and(|it| it.edge.access_log.is_some());
    if has_access_log {
        service.status().open_access_log().map_err(ServeError::Start)?;
    }
    let access_log = service.status().access_log().cloned();
    let mut server = Server { open, stop, threads: Vec::new(), access_log };
    let mut workers = Vec::new();
    let (settings, budget) = (Arc::new(settings.clone()), Budget::new());
    service.status().forwards_to(upstreams.clone());
    for number in 0..settings.threads.get() {
        let (sender, incoming) = mpsc::channel(MAX_WAITING);
        let (service, settings, budget) = (service.clone(), Arc::clone(&settings), budget.clone());
        let runtime = runtime().map_err(ServeError::Start)?;
        let upstreams = upstreams.clone();
        let work =
            move || runtime.block_on(worker::work(incoming, service, settings, budget, upstreams));
        server.threads.push(start(format!("tidegate-{number}"), work)?);
        workers.push(sender);
    }
    let runtime = runtime().map_err(ServeError::Start)?;
    let max_connections = settings.max_connections.min(Semaphore::MAX_PERMITS);
    let service = service.for_thread();
    let listeners = Listeners { listening, upstreams, workers, max_connections };
    let accept = move || runtime.block_on(listeners.accept(service, stopped));
    server.threads.push(start("tidegate-accept".into(), accept)?);
    Ok(server)
}

/// Opens all listeners, or returns all that cannot be opened.
fn open_all(
    settings: &Settings,
    service: &RateLimitService,
    mut inherited: Vec<(Protocol, Inherited)>,
) -> Result<Vec<Listening>, ServeError> {
    let wanted = [
        (Protocol::Resp, &settings.resp),
        (Protocol::Http, &settings.http),
        (Protocol::Grpc, &settings.grpc),
        (Protocol::Admin, &settings.admin),
        (Protocol::Metrics, &settings.metrics),
        (Protocol::Gateway, &settings.proxy),
    ];
    let (mut listening, mut failed) = (Vec::new(), Vec::new());
    for (protocol, listen) in wanted {
        let accept = settings.gateway.as_ref().filter(|_| protocol == Protocol::Gateway);
        let accept = accept.map(|gateway| Accept::new(gateway, service.clock()));
        let accept =
            accept.transpose().map_err(|error| ServeError::Start(io::Error::other(error)))?;
        let own = inherited.iter().position(|(meant, _)| *meant == protocol);
        let own = own.map(|place| inherited.swap_remove(place).1);
        match listen.as_ref().map(|listen| open(protocol, (listen, own), accept)) {
            Some(Ok(opened)) => listening.push(opened),
            Some(Err(error)) => failed.push(error),
            None => {}
        }
    }
    match failed.len() {
        0 => Ok(listening),
        1 => Err(failed.remove(0)),
        _ => Err(ServeError::Several(failed)),
    }
}

/// The open listeners, and the workers that serve their connections.
struct Listeners {
    listening: Vec<Listening>,
    upstreams: Option<Arc<Upstreams>>,
    workers: Vec<mpsc::Sender<NewConnection>>,
    /// Maximum number of connections of each listener.
    max_connections: usize,
}

impl Listeners {
    /// Accepts connections until the server stops.
    async fn accept(self, service: RateLimitService, stopped: watch::Receiver<bool>) {
        let Self { listening, upstreams, workers, max_connections } = self;
        let mut accepting = JoinSet::new();
        let (log, counters) = (service.status().log().clone(), Arc::clone(service.counters()));
        accepting.spawn(outages::watch(service, stopped.clone()));
        let for_upstreams = upstreams.as_ref().map_or(0, |it| it.max_connections(workers.len()));
        if let Some(upstreams) = upstreams {
            accepting.spawn(gateway::watch(upstreams, stopped.clone()));
        }
        let descriptors = Descriptors::divide(listening.len(), for_upstreams);
        for (Listening { bound, listener, is_inherited, .. }, descriptors) in
            listening.into_iter().zip(descriptors)
        {
            if listener.tls.is_some() {
                accepting.spawn(renew(Arc::clone(&listener), stopped.clone()));
            }
            let acceptor = Acceptor {
                listener,
                slots: Arc::new(Semaphore::new(max_connections)),
                descriptors,
                workers: workers.clone(),
                log: log.clone(),
                counters: Arc::clone(&counters),
                is_inherited,
                turn: 0,
            };
            accepting.spawn(acceptor.accept(bound, stopped.clone()));
        }
        // The workers end once the last sender is gone.
        drop(workers);
        while accepting.join_next().await.is_some() {}
    }
}

/// An open listener that does not accept connections yet.
struct Listening {
    bound: Bound,
    is_inherited: bool,
    address: Address,
    listener: Arc<Transport>,
}

fn open(
    protocol: Protocol,
    (listen, inherited): (&Listen, Option<Inherited>),
    accept: Option<Accept>,
) -> Result<Listening, ServeError> {
    let (name, address) = (protocol.name(), listen.address.clone());
    let tls = listen.tls.clone().map(|files| Tls::load(files, protocol.in_tls()));
    let tls = tls.transpose().map_err(|error| ServeError::Tls { name, error })?;
    let refused = |error| ServeError::Bind { name, address: listen.address.clone(), error };
    let is_inherited = inherited.is_some();
    let bound = inherited.map_or_else(|| Bound::open(&address), Bound::inherit).map_err(refused)?;
    let address = bound.address().map_err(refused)?;
    Ok(Listening {
        bound,
        is_inherited,
        address,
        listener: Arc::new(Transport { protocol, tls, accept }),
    })
}

fn runtime() -> io::Result<runtime::Runtime> {
    runtime::Builder::new_current_thread().enable_all().event_interval(POLLS_PER_LOOK).build()
}

/// Maximum number of tasks that a thread runs before it checks for new input. With the default of
/// 61, a few busy connections would delay the others on their thread.
const POLLS_PER_LOOK: u32 = 16;

fn start(name: String, work: impl FnOnce() + Send + 'static) -> Result<JoinHandle<()>, ServeError> {
    thread::Builder::new().name(name).spawn(work).map_err(ServeError::Start)
}

/// Reloads certificates that have been renewed.
async fn renew(listener: Arc<Transport>, mut stopped: watch::Receiver<bool>) {
    let stopping = async { stopped.wait_for(|stopped| *stopped).await.is_ok() };
    let mut stopping = pin!(stopping);
    while tokio::time::timeout(CERTIFICATES, stopping.as_mut()).await.is_err() {
        let name = listener.protocol.name();
        match listener.tls.as_ref().map(Tls::reload) {
            Some(Ok(true)) => {
                info!(event = "certificate_renewed", listener = name, "certificate renewed");
            }
            // The file may be half written: the old certificate stays in use until the next check.
            Some(Err(error)) => {
                let event = "certificate_refused";
                warn!(event, listener = name, "certificate not renewed: {error}");
            }
            Some(Ok(false)) | None => {}
        }
    }
}

/// Accepts the connections of one listener and hands them to workers.
struct Acceptor {
    listener: Arc<Transport>,
    slots: Arc<Semaphore>,
    descriptors: Descriptors,
    workers: Vec<mpsc::Sender<NewConnection>>,
    log: Log,
    counters: Arc<Counters>,
    is_inherited: bool,
    /// The worker that gets the next connection.
    turn: usize,
}

impl Acceptor {
    async fn accept(mut self, bound: Bound, mut stopped: watch::Receiver<bool>) {
        // Registered here, in the runtime that waits for the listener.
        let Ok(listener) = bound.register() else { return };
        loop {
            let accepted = tokio::select! {
                biased;
                _ = stopped.wait_for(|stopped| *stopped) => break,
                accepted = listener.accept() => accepted,
            };
            match accepted {
                Ok(socket) => self.take(socket).await,
                Err(error) if is_about_the_peer(&error) => {}
                Err(error) => {
                    self.log_failed(&error);
                    tokio::time::sleep(PAUSE).await;
                }
            }
        }
        // Connections that wait in an inherited socket are served by the next process.
        if !self.is_inherited {
            self.accept_pending(&listener).await;
        }
    }

    /// Accepts connections that were opened before the daemon stopped, because their requests may
    /// be in transit.
    async fn accept_pending(&mut self, listener: &Listener) {
        let mut quiet = 0;
        while quiet < LAST_LOOKS {
            // Lets the runtime poll for new connections.
            tokio::task::yield_now().await;
            let mut next = pin!(listener.accept());
            let next = poll_fn(|context| Poll::Ready(next.as_mut().poll(context))).await;
            match next {
                Poll::Ready(Ok(socket)) => self.take(socket).await,
                _ => quiet += 1,
            }
        }
    }

    /// Passes a connection to a worker, or closes it.
    async fn take(&mut self, socket: Socket) {
        let peer = socket.peer();
        match self.slot(peer) {
            Ok(slot) => {
                self.turn = self.turn.wrapping_add(1);
                let listener = Arc::clone(&self.listener);
                self.hand_over(self.turn, NewConnection { socket, slot, listener }).await;
            }
            Err(refusal) => {
                refuse(refusal, self.listener.protocol, peer, (&self.counters, &self.log));
                if refusal != Refusal::Full {
                    socket.reset();
                }
            }
        }
    }

    fn log_failed(&self, error: &io::Error) {
        if let Some(Admitted { suppressed }) = self.log.admit(Frequent::AcceptFailed) {
            let (event, listener) = ("accept_failed", self.listener.protocol.name());
            error!(event, listener, suppressed, "cannot accept connections: {error}");
        }
    }

    /// Takes a slot for one more connection of a peer. A connection with a PROXY protocol header is
    /// counted under its client's address later.
    fn slot(&self, peer: Option<IpAddr>) -> Result<ConnectionSlot, Refusal> {
        let accept = self.listener.accept.as_ref().filter(|it| !it.expects_header(peer));
        let of_address = accept.map_or(Ok(None), |accept| accept.admit(peer))?;
        let on_listener = Arc::clone(&self.slots).try_acquire_owned();
        let on_listener = on_listener.map_err(|_| Refusal::Full)?;
        let in_process = self.descriptors.take().ok_or(Refusal::Full)?;
        Ok(ConnectionSlot { _on_listener: on_listener, _in_process: in_process, of_address })
    }

    /// Passes a connection to the next worker in turn, or to the one after it if that worker has
    /// ended by a panic.
    async fn hand_over(&self, turn: usize, mut connection: NewConnection) {
        for next in 0..self.workers.len() {
            let Some(worker) = self.workers.get((turn + next) % self.workers.len()) else { return };
            match worker.send(connection).await {
                Ok(()) => return,
                Err(mpsc::error::SendError(back)) => connection = back,
            }
        }
    }
}

/// Whether accepting failed because of this client, so that the next connection can be accepted at
/// once.
fn is_about_the_peer(error: &io::Error) -> bool {
    use io::ErrorKind::{ConnectionAborted, ConnectionReset, Interrupted};
    matches!(error.kind(), ConnectionAborted | ConnectionReset | Interrupted)
}

/// Why a server could not be started.
#[derive(Debug)]
#[non_exhaustive]
pub enum ServeError {
    /// A listener could not be opened.
    Bind {
        /// The name of the listener's protocol.
        name: &'static str,
        /// Where.
        address: Address,
        /// Why not.
        error: io::Error,
    },
    /// A certificate cannot be used.
    Tls {
        /// The name of the listener's protocol.
        name: &'static str,
        /// Why not.
        error: TlsError,
    },
    /// Clients on other machines could use the Redis protocol without credentials.
    Unauthenticated(Address),
    /// The CA certificates for an upstream cannot be used.
    Upstream(String),
    /// A thread or its runtime could not be started.
    Start(io::Error),
    /// Several listeners could not be opened.
    Several(Vec<Self>),
}

/// Advice on how to choose another address for a listener.
fn other_address(name: &str) -> String {
    let setting = format!("listen.{}.address", name.to_ascii_lowercase());
    match name {
        // The metrics listener is the only one without a flag.
        "metrics" => format!("choose another with {setting}"),
        _ => format!("choose another with --{} or {setting}", name.to_ascii_lowercase()),
    }
}

impl fmt::Display for ServeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Bind { name, address, error } if error.kind() == io::ErrorKind::AddrInUse => {
                let advice = other_address(name);
                write!(f, "cannot bind {address} ({name}): address already in use; {advice}")
            }
            Self::Bind { name, address, error } => {
                write!(f, "cannot bind {address} ({name}): {error}; {}", other_address(name))
            }
            Self::Several(errors) => {
                for (number, error) in errors.iter().enumerate() {
                    let separator = if number == 0 { "" } else { "\n" };
                    write!(f, "{separator}{error}")?;
                }
                Ok(())
            }
            Self::Tls { name, error } => write!(f, "cannot encrypt {name}: {error}"),
            Self::Unauthenticated(address) => write!(
                f,
                "listen.resp.address: RESP on {address} is open to other machines without a \
                 password; set listen.resp.password_file (--password-file), listen on 127.0.0.1, or \
                 set listen.resp.allow_unauthenticated to true"
            ),
            Self::Upstream(why) => write!(f, "cannot forward requests: {why}"),
            Self::Start(error) => write!(f, "cannot start a thread: {error}"),
        }
    }
}

impl std::error::Error for ServeError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Bind { error, .. } | Self::Start(error) => Some(error),
            Self::Tls { error, .. } => Some(error),
            Self::Unauthenticated(_) | Self::Several(_) | Self::Upstream(_) => None,
        }
    }
}
