//! Connections to the upstream: a bounded pool on each worker.

use std::fmt;
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use hyper::client::conn::http1::{self, SendRequest};
use hyper_util::rt::TokioIo;
use tokio::net::TcpStream;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::{sleep, timeout};

use super::body::{RequestBody, UPSTREAM_IDLE};
use super::framing::{MAX_FIELDS, MAX_HEAD};
use crate::settings::Upstream;
use crate::transport::Stream;
use crate::transport::http::WriteTimeout;

/// How long an idle connection is kept, in sweeps. Node.js closes its side after five seconds.
const MAX_AGE: u8 = 4;
const SWEEP: Duration = Duration::from_secs(1);

/// How long a request waits for a connection when all are in use.
const MAX_WAIT: Duration = Duration::from_secs(1);

/// The connections of one worker to the upstream.
#[derive(Clone, Debug)]
pub(crate) struct Pool(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    upstream: Upstream,
    idle: Mutex<Vec<Idle>>,
    /// One permit for each connection, idle ones included.
    slots: Arc<Semaphore>,
}

/// A connection without a request.
struct Idle {
    sender: SendRequest<RequestBody>,
    slot: OwnedSemaphorePermit,
    /// Number of sweeps that have found it idle.
    age: u8,
}

impl fmt::Debug for Idle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Idle").field("age", &self.age).finish_non_exhaustive()
    }
}

/// A connection with a request. Dropping it closes the connection; [`Leased::put_back`] keeps it.
pub(super) struct Leased {
    pub(super) sender: SendRequest<RequestBody>,
    /// Whether it has carried a request before, so that the upstream may be closing it.
    pub(super) is_reused: bool,
    slot: OwnedSemaphorePermit,
    pool: Pool,
}

impl fmt::Debug for Leased {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Leased").field("is_reused", &self.is_reused).finish_non_exhaustive()
    }
}

/// Why there is no connection.
#[derive(Debug)]
pub(super) enum NoConnection {
    /// All connections are in use.
    Busy,
    /// The upstream refuses connections, or does not answer.
    Failed(io::Error),
}

impl Pool {
    /// A pool of at most so many connections.
    pub(crate) fn new(upstream: Upstream, connections: usize) -> Self {
        let slots = Arc::new(Semaphore::new(connections.clamp(1, Semaphore::MAX_PERMITS)));
        Self(Arc::new(Shared { upstream, idle: Mutex::default(), slots }))
    }

    fn idle(&self) -> MutexGuard<'_, Vec<Idle>> {
        self.0.idle.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// An idle connection, the last one used first; or a new one.
    pub(super) async fn lease(&self) -> Result<Leased, NoConnection> {
        if let Some(leased) = self.reuse() {
            return Ok(leased);
        }
        // A connection whose response has just ended is ready once its task has run.
        tokio::task::yield_now().await;
        match self.reuse() {
            Some(leased) => Ok(leased),
            None => self.lease_new().await,
        }
    }

    fn reuse(&self) -> Option<Leased> {
        let mut idle = self.idle();
        idle.retain(|connection| !connection.sender.is_closed());
        let place = idle.iter().rposition(|connection| connection.sender.is_ready())?;
        let Idle { sender, slot, .. } = idle.remove(place);
        drop(idle);
        Some(Leased { sender, is_reused: true, slot, pool: self.clone() })
    }

    /// A new connection.
    pub(super) async fn lease_new(&self) -> Result<Leased, NoConnection> {
        let slots = Arc::clone(&self.0.slots);
        let slot = match Arc::clone(&slots).try_acquire_owned() {
            Ok(slot) => slot,
            Err(_) => {
                // An idle connection that cannot be used makes room.
                drop(self.idle().pop());
                let waited = timeout(MAX_WAIT, slots.acquire_owned()).await;
                waited.ok().and_then(Result::ok).ok_or(NoConnection::Busy)?
            }
        };
        let sender = self.connect().await.map_err(NoConnection::Failed)?;
        Ok(Leased { sender, is_reused: false, slot, pool: self.clone() })
    }

    async fn connect(&self) -> io::Result<SendRequest<RequestBody>> {
        let Upstream { host, port, connect_timeout, .. } = &self.0.upstream;
        let connected = timeout(*connect_timeout, TcpStream::connect((host.as_str(), *port))).await;
        let socket = connected.map_err(|_| io::Error::from(io::ErrorKind::TimedOut))??;
        socket.set_nodelay(true)?;
        let handshake = http1::Builder::new()
            .max_headers(MAX_FIELDS)
            .max_buf_size(2 * MAX_HEAD)
            .handshake(TokioIo::new(WriteTimeout::new(Stream::Tcp(socket), UPSTREAM_IDLE)));
        let (sender, connection) = handshake.await.map_err(io::Error::other)?;
        // Its errors reach the request that it carries.
        tokio::spawn(async { drop(connection.with_upgrades().await) });
        Ok(sender)
    }

    /// Closes connections that have been idle for too long, until none is idle.
    async fn sweep(self) {
        loop {
            sleep(SWEEP).await;
            let mut idle = self.idle();
            idle.iter_mut().for_each(|connection| connection.age += 1);
            idle.retain(|connection| connection.age < MAX_AGE);
            if idle.is_empty() {
                return;
            }
        }
    }
}

impl Leased {
    /// Keeps the connection for another request: its response has ended.
    pub(super) fn put_back(self) {
        let Self { sender, slot, pool, .. } = self;
        if sender.is_closed() {
            return;
        }
        let mut idle = pool.idle();
        let is_first = idle.is_empty();
        idle.push(Idle { sender, slot, age: 0 });
        drop(idle);
        if is_first {
            tokio::spawn(pool.sweep());
        }
    }
}
