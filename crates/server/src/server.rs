//! Listeners, and the threads behind them.

use std::fmt;
use std::io;
use std::net::{SocketAddr, TcpListener as StdListener};
use std::sync::Arc;
use std::thread::{self, JoinHandle};
use std::time::Duration;

use tokio::net::TcpListener;
use tokio::runtime;
use tokio::sync::{Semaphore, mpsc, watch};

use crate::gate::Gate;
use crate::settings::Settings;
use crate::transport::Door;
use crate::worker::{self, Visitor};

/// How many sockets wait for a worker to take them up.
const MAX_WAITING: usize = 1_024;

/// How long to wait before accepting again after the system could not, as when it is out of file
/// descriptors: until one is closed, asking again at once would fail again.
const PAUSE: Duration = Duration::from_millis(50);

/// A server that runs until it is stopped or dropped.
#[derive(Debug)]
pub struct Server {
    resp: Option<SocketAddr>,
    http: Option<SocketAddr>,
    stop: watch::Sender<bool>,
    threads: Vec<JoinHandle<()>>,
}

impl Server {
    /// Where it speaks the Redis protocol.
    pub const fn resp(&self) -> Option<SocketAddr> {
        self.resp
    }

    /// Where it speaks HTTP.
    pub const fn http(&self) -> Option<SocketAddr> {
        self.http
    }

    /// Takes no more connections, answers what has been read, closes, and waits for all of it, at
    /// most as long as [`Settings::drain`] says.
    pub fn stop(self) {
        // What has to be done is done by dropping.
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.stop.send_replace(true);
        for thread in self.threads.drain(..) {
            // If it panicked, it has said so already.
            let _ = thread.join();
        }
    }
}

/// Starts a server: its listeners are open once this returns.
pub fn serve(settings: &Settings, gate: &Gate) -> Result<Server, ServeError> {
    let password = settings.password.as_deref().map(Arc::from);
    let resp = settings.resp.map(|address| bind(address, Door::Resp { password })).transpose()?;
    let http = settings.http.map(|address| bind(address, Door::Http)).transpose()?;
    let bound = |open: &Option<Listening>| open.as_ref().map(|listening| listening.address);
    let (resp_address, http_address) = (bound(&resp), bound(&http));
    let (stop, stopped) = watch::channel(false);
    // From here on, dropping it ends the threads that are there already.
    let mut server = Server { resp: resp_address, http: http_address, stop, threads: Vec::new() };
    let mut workers = Vec::new();
    for number in 0..settings.threads.get() {
        let (sender, visitors) = mpsc::channel(MAX_WAITING);
        let (gate, settings) = (gate.clone(), settings.clone());
        let runtime = runtime().map_err(ServeError::Start)?;
        let work = move || runtime.block_on(worker::work(visitors, gate, settings));
        server.threads.push(start(format!("tidegate-{number}"), work)?);
        workers.push(sender);
    }
    let runtime = runtime().map_err(ServeError::Start)?;
    let max_connections = settings.max_connections;
    let welcome = move || {
        runtime.block_on(async {
            let mut accepting = tokio::task::JoinSet::new();
            for Listening { listener, door, .. } in resp.into_iter().chain(http) {
                let places = Arc::new(Semaphore::new(max_connections));
                let reception = Reception { door, places, workers: workers.clone() };
                accepting.spawn(reception.accept(listener, stopped.clone()));
            }
            // The workers end once nobody can send them anybody.
            drop(workers);
            while accepting.join_next().await.is_some() {}
        });
    };
    server.threads.push(start("tidegate-accept".into(), welcome)?);
    Ok(server)
}

/// An open listener that nobody is accepted from yet.
struct Listening {
    listener: StdListener,
    address: SocketAddr,
    door: Door,
}

fn bind(address: SocketAddr, door: Door) -> Result<Listening, ServeError> {
    let name = door.name();
    let refused = |error| ServeError::Bind { name, address, error };
    let listener = StdListener::bind(address).map_err(refused)?;
    listener.set_nonblocking(true).map_err(refused)?;
    let address = listener.local_addr().map_err(refused)?;
    Ok(Listening { listener, address, door })
}

fn runtime() -> io::Result<runtime::Runtime> {
    runtime::Builder::new_current_thread().enable_all().build()
}

fn start(name: String, work: impl FnOnce() + Send + 'static) -> Result<JoinHandle<()>, ServeError> {
    thread::Builder::new().name(name).spawn(work).map_err(ServeError::Start)
}

/// Who stands at a door and shows people in.
struct Reception {
    door: Door,
    places: Arc<Semaphore>,
    workers: Vec<mpsc::Sender<Visitor>>,
}

impl Reception {
    async fn accept(self, listener: StdListener, mut stopped: watch::Receiver<bool>) {
        // It is registered here, for it has to be in the runtime that waits for it.
        let Ok(listener) = TcpListener::from_std(listener) else { return };
        let mut turns = (0..self.workers.len()).cycle();
        loop {
            let accepted = tokio::select! {
                biased;
                _ = stopped.wait_for(|stopped| *stopped) => return,
                accepted = listener.accept() => accepted,
            };
            match accepted {
                Ok((socket, _)) => {
                    let Ok(place) = Arc::clone(&self.places).try_acquire_owned() else { continue };
                    // Leaves this thread's poller; the worker's will take it up.
                    let Ok(socket) = socket.into_std() else { continue };
                    let visitor = Visitor { socket, place, door: self.door.clone() };
                    let worker = turns.next().and_then(|turn| self.workers.get(turn));
                    if let Some(worker) = worker {
                        // Fails only if the worker has panicked: the others go on.
                        let _ = worker.send(visitor).await;
                    }
                }
                Err(error) if is_about_the_peer(&error) => {}
                Err(_) => tokio::time::sleep(PAUSE).await,
            }
        }
    }
}

/// Whether accepting failed because of the one who came: the next may be welcome at once.
fn is_about_the_peer(error: &io::Error) -> bool {
    use io::ErrorKind::{ConnectionAborted, ConnectionReset, Interrupted};
    matches!(error.kind(), ConnectionAborted | ConnectionReset | Interrupted)
}

/// Why there is no server.
#[derive(Debug)]
#[non_exhaustive]
pub enum ServeError {
    /// A listener could not be opened.
    Bind {
        /// What would have been spoken there.
        name: &'static str,
        /// Where.
        address: SocketAddr,
        /// Why not.
        error: io::Error,
    },
    /// A thread or its runtime could not be started.
    Start(io::Error),
}

impl fmt::Display for ServeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Bind { name, address, error } if error.kind() == io::ErrorKind::AddrInUse => {
                write!(f, "cannot listen on {address} for {name}: another program does already")
            }
            Self::Bind { name, address, error } => {
                write!(f, "cannot listen on {address} for {name}: {error}")
            }
            Self::Start(error) => write!(f, "cannot start a thread: {error}"),
        }
    }
}

impl std::error::Error for ServeError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Bind { error, .. } | Self::Start(error) => Some(error),
        }
    }
}
