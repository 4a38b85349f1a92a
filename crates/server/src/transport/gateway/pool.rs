//! Connections of one worker to one address: a bounded pool.

use std::fmt;
use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures_util::FutureExt;
use h2::client::SendRequest as Http2Sender;
use hyper::body::Bytes;
use hyper::client::conn::http1::SendRequest as Http1Sender;
use rustix::io::Errno;
use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore};
use tokio::time::{sleep, timeout};

use super::address::{Address, Open};
use super::body::RequestBody;
use super::connect::{self, Connected, Connector, MAX_STREAMS};

/// How long an idle connection is kept, in sweeps: less than the five seconds after which Node.js
/// closes its side. An HTTP/2 peer announces that it closes.
const MAX_AGE: u8 = 4;
const MAX_AGE_HTTP2: u8 = 60;
const SWEEP: Duration = Duration::from_secs(1);

/// How long a request waits for a connection when all are in use.
const MAX_WAIT: Duration = Duration::from_secs(1);

/// The connections of one worker to one address.
#[derive(Clone, Debug)]
pub(super) struct Pool(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    address: Arc<Address>,
    connector: Arc<Connector>,
    kept: Mutex<Kept>,
    /// One permit for each connection, including idle ones.
    slots: Arc<Semaphore>,
    /// Whether the latest connection uses HTTP/2, or the first one may use it.
    is_http2: AtomicBool,
    /// Held while an HTTP/2 connection is opened, so that other requests wait for it and do not
    /// open their own.
    connecting: tokio::sync::Mutex<()>,
    /// Wakes a waiting request when a connection is free.
    freed: Notify,
}

/// Connections that may carry another request.
#[derive(Debug, Default)]
struct Kept {
    /// HTTP/1.1 connections without a request.
    http1: Vec<Idle>,
    http2: Vec<Multiplexed>,
    is_swept: bool,
}

/// An HTTP/1.1 connection without a request.
struct Idle {
    sender: Http1Sender<RequestBody>,
    slot: Slot,
    /// Number of sweeps that have found it idle.
    age: u8,
}

/// An HTTP/2 connection.
struct Multiplexed {
    sender: Http2Sender<Bytes>,
    /// One permit for each request.
    streams: Arc<Semaphore>,
    age: u8,
}

impl fmt::Debug for Idle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Idle").field("age", &self.age).finish_non_exhaustive()
    }
}

impl fmt::Debug for Multiplexed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Multiplexed").field("streams", &self.streams).finish_non_exhaustive()
    }
}

/// The right to open a connection.
#[derive(Debug)]
pub(super) struct Slot {
    _permit: OwnedSemaphorePermit,
    _open: Open,
}

/// A connection for one request.
pub(super) enum Lease {
    /// Dropping it closes the connection; [`Lease::put_back`] keeps it.
    Http1 { sender: Http1Sender<RequestBody>, slot: Slot, pool: Pool },
    /// One stream of a connection.
    Http2 { sender: Http2Sender<Bytes>, _stream: OwnedSemaphorePermit },
}

/// What a request does if all connections are in use.
#[derive(Clone, Copy, Debug)]
pub(super) enum WhenFull {
    /// Waits for one, for [`MAX_WAIT`] at most.
    Wait,
    /// Tries another address.
    GoOn,
}

/// The event that ended a request's wait for a connection.
enum Freed {
    Slot(OwnedSemaphorePermit),
    Lease(Lease),
}

/// Why there is no connection.
#[derive(Debug)]
pub(super) enum NoConnection {
    /// All connections are in use.
    Busy,
    /// The upstream refuses connections, or does not answer.
    Failed(io::Error),
}

impl NoConnection {
    /// Classifies a failure to connect. A shortage in the gateway does not count against the
    /// upstream.
    fn of(error: io::Error) -> Self {
        let lacking =
            [Errno::MFILE, Errno::NFILE, Errno::NOBUFS, Errno::NOMEM, Errno::ADDRNOTAVAIL];
        match error.raw_os_error() {
            Some(code) if lacking.iter().any(|it| it.raw_os_error() == code) => Self::Busy,
            _ => Self::Failed(error),
        }
    }
}

impl Pool {
    /// A pool of at most `connections` connections.
    pub(super) fn new(
        address: Arc<Address>,
        connector: Arc<Connector>,
        connections: usize,
    ) -> Self {
        let slots = Arc::new(Semaphore::new(connections.clamp(1, Semaphore::MAX_PERMITS)));
        Self(Arc::new(Shared {
            address,
            is_http2: AtomicBool::new(connector.may_be_http2()),
            connector,
            kept: Mutex::default(),
            slots,
            connecting: tokio::sync::Mutex::default(),
            freed: Notify::new(),
        }))
    }

    fn kept(&self) -> MutexGuard<'_, Kept> {
        self.0.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes the connection that was used last, or opens a new one. Also returns whether the
    /// connection was used before.
    pub(super) async fn lease(&self, when_full: WhenFull) -> Result<(Lease, bool), NoConnection> {
        if let Some(lease) = self.reuse() {
            return Ok((lease, true));
        }
        // A connection whose response has just ended becomes ready when its task runs.
        tokio::task::yield_now().await;
        match self.reuse() {
            Some(lease) => Ok((lease, true)),
            None => self.lease_again(when_full).await,
        }
    }

    /// A new connection; over HTTP/2, requests share the one that the first of them opens. Also
    /// returns whether the connection was used before.
    pub(super) async fn lease_again(
        &self,
        when_full: WhenFull,
    ) -> Result<(Lease, bool), NoConnection> {
        match self.0.is_http2.load(Ordering::Relaxed) {
            true => self.share(when_full).await,
            false => self.lease_new(when_full).await,
        }
    }

    fn reuse(&self) -> Option<Lease> {
        let mut kept = self.kept();
        // A connection that has ended is not ready; a sweep removes it.
        if let Some(place) = kept.http1.iter().rposition(|it| it.sender.is_ready()) {
            let Idle { sender, slot, .. } = kept.http1.remove(place);
            return Some(Lease::Http1 { sender, slot, pool: self.clone() });
        }
        let mut found = None;
        kept.http2.retain_mut(|connection| {
            if found.is_none() {
                if !connection.is_open() {
                    return false;
                }
                found = connection.lease();
            }
            true
        });
        found
    }

    /// A stream of the connection that another request is opening, or of a new one.
    async fn share(&self, when_full: WhenFull) -> Result<(Lease, bool), NoConnection> {
        let connecting = match when_full {
            WhenFull::Wait => timeout(MAX_WAIT, self.0.connecting.lock()).await.ok(),
            WhenFull::GoOn => self.0.connecting.try_lock().ok(),
        };
        let connecting = connecting.ok_or(NoConnection::Busy)?;
        if !self.0.is_http2.load(Ordering::Relaxed) {
            // The handshake chose HTTP/1.1, where every request needs its own connection.
            drop(connecting);
        }
        match self.reuse() {
            Some(lease) => Ok((lease, true)),
            None => self.lease_new(when_full).await,
        }
    }

    /// Opens a new connection. In a full pool, the request shares an HTTP/2 connection; otherwise
    /// an idle connection is closed, and the request waits for room.
    async fn lease_new(&self, when_full: WhenFull) -> Result<(Lease, bool), NoConnection> {
        let slots = Arc::clone(&self.0.slots);
        let permit = match Arc::clone(&slots).try_acquire_owned() {
            Ok(permit) => permit,
            Err(_) => {
                if let Some((sender, streams)) = self.shared() {
                    let stream = match when_full {
                        WhenFull::Wait => {
                            let stream = timeout(MAX_WAIT, streams.acquire_owned()).await;
                            stream.ok().and_then(Result::ok)
                        }
                        WhenFull::GoOn => streams.try_acquire_owned().ok(),
                    };
                    let stream = stream.ok_or(NoConnection::Busy)?;
                    return Ok((Lease::Http2 { sender, _stream: stream }, true));
                }
                self.make_room();
                let freed = match when_full {
                    WhenFull::Wait => timeout(MAX_WAIT, self.wait()).await.ok().flatten(),
                    WhenFull::GoOn => self.free(),
                };
                match freed.ok_or(NoConnection::Busy)? {
                    Freed::Slot(permit) => permit,
                    Freed::Lease(lease) => return Ok((lease, true)),
                }
            }
        };
        let Shared { address, connector, .. } = &*self.0;
        let slot = Slot { _permit: permit, _open: address.open() };
        let connected = connector.connect(address).await;
        match connected.map_err(NoConnection::of)? {
            Connected::Http1(sender, connection) => {
                self.0.is_http2.store(false, Ordering::Relaxed);
                // The request on the connection gets its errors.
                tokio::spawn(async { drop(connection.with_upgrades().await) });
                Ok((Lease::Http1 { sender, slot, pool: self.clone() }, false))
            }
            Connected::Http2(sender, connection) => {
                self.0.is_http2.store(true, Ordering::Relaxed);
                tokio::spawn(async {
                    connect::run(connection).await;
                    drop(slot);
                });
                let streams = Arc::new(Semaphore::new(MAX_STREAMS.into()));
                let multiplexed = Multiplexed { sender: sender.clone(), streams, age: 0 };
                let stream = Arc::clone(&multiplexed.streams).try_acquire_owned();
                let mut kept = self.kept();
                kept.http2.push(multiplexed);
                self.begin_sweeps(&mut kept);
                drop(kept);
                let stream = stream.map_err(|_| NoConnection::Busy)?;
                Ok((Lease::Http2 { sender, _stream: stream }, false))
            }
        }
    }

    /// An HTTP/2 connection that accepts requests.
    fn shared(&self) -> Option<(Http2Sender<Bytes>, Arc<Semaphore>)> {
        let mut kept = self.kept();
        kept.http2.retain(Multiplexed::is_open);
        kept.http2.first().map(Multiplexed::handle)
    }

    /// Closes an idle connection: one that has ended if possible.
    fn make_room(&self) {
        let mut kept = self.kept();
        let before = kept.http1.len();
        kept.http1.retain(|connection| !connection.sender.is_closed());
        if kept.http1.len() == before {
            kept.http1.pop();
        }
    }

    /// A free connection, or room for one more, without waiting: a wait that is given up could take
    /// the wake-up of another request.
    fn free(&self) -> Option<Freed> {
        match Arc::clone(&self.0.slots).try_acquire_owned() {
            Ok(permit) => Some(Freed::Slot(permit)),
            Err(_) => self.reuse().map(Freed::Lease),
        }
    }

    /// Waits until a connection is free, or there is room for one more.
    async fn wait(&self) -> Option<Freed> {
        loop {
            tokio::select! {
                biased;
                permit = Arc::clone(&self.0.slots).acquire_owned() => {
                    return permit.ok().map(Freed::Slot);
                }
                () = self.0.freed.notified() => {
                    // The connection becomes ready when its task runs.
                    tokio::task::yield_now().await;
                    if let Some(lease) = self.reuse() {
                        return Some(Freed::Lease(lease));
                    }
                }
            }
        }
    }

    fn begin_sweeps(&self, kept: &mut Kept) {
        if !std::mem::replace(&mut kept.is_swept, true) {
            tokio::spawn(self.clone().sweep());
        }
    }

    /// Closes connections that have been idle for too long, until none is left.
    async fn sweep(self) {
        loop {
            sleep(SWEEP).await;
            let mut kept = self.kept();
            kept.http1.iter_mut().for_each(|connection| connection.age += 1);
            kept.http1.retain(|it| it.age < MAX_AGE && !it.sender.is_closed());
            kept.http2.retain_mut(Multiplexed::is_kept);
            if kept.http1.is_empty() && kept.http2.is_empty() {
                kept.is_swept = false;
                return;
            }
        }
    }
}

impl Multiplexed {
    fn handle(&self) -> (Http2Sender<Bytes>, Arc<Semaphore>) {
        (self.sender.clone(), Arc::clone(&self.streams))
    }

    /// Requests in progress.
    fn used(&self) -> usize {
        usize::from(MAX_STREAMS).saturating_sub(self.streams.available_permits())
    }

    /// Whether the connection accepts requests. It does not after a GOAWAY of the upstream, or once
    /// it has ended.
    fn is_open(&self) -> bool {
        matches!(self.sender.clone().ready().now_or_never(), Some(Ok(_)))
    }

    /// A stream, if the connection has room for one.
    fn lease(&mut self) -> Option<Lease> {
        self.age = 0;
        if self.used() >= self.sender.current_max_send_streams() {
            return None;
        }
        let stream = Arc::clone(&self.streams).try_acquire_owned().ok()?;
        Some(Lease::Http2 { sender: self.sender.clone(), _stream: stream })
    }

    /// Counts one sweep, and returns whether the connection is kept.
    fn is_kept(&mut self) -> bool {
        if self.used() > 0 {
            self.age = 0;
        } else {
            self.age += 1;
        }
        self.age < MAX_AGE_HTTP2 && self.is_open()
    }
}

impl Lease {
    /// Keeps the connection for another request: its response has ended.
    pub(super) fn put_back(self) {
        let Self::Http1 { sender, slot, pool } = self else { return };
        if sender.is_closed() {
            return;
        }
        let mut kept = pool.kept();
        kept.http1.push(Idle { sender, slot, age: 0 });
        pool.begin_sweeps(&mut kept);
        drop(kept);
        pool.0.freed.notify_one();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::settings::Upstream;

    fn pool(url: &str) -> Pool {
        let upstream: Upstream = url.parse().unwrap();
        let address = Address::new(upstream.addresses[0].clone(), "api", None);
        Pool::new(address, Arc::new(Connector::new(&upstream).unwrap()), 1)
    }

    fn is_busy(pool: &Pool) -> bool {
        let leased = pool.lease_again(WhenFull::GoOn).now_or_never();
        matches!(leased, Some(Err(NoConnection::Busy)))
    }

    /// Neither for a connection nor for the request that opens one.
    #[tokio::test]
    async fn a_request_that_may_go_on_does_not_wait() {
        let http1 = pool("http://127.0.0.1:1");
        let slot = Arc::clone(&http1.0.slots).try_acquire_owned().unwrap();
        assert!(is_busy(&http1));
        drop(slot);
        assert!(!is_busy(&http1));
        let http2 = pool("h2c://127.0.0.1:1");
        let connecting = http2.0.connecting.lock().await;
        assert!(is_busy(&http2));
        drop(connecting);
        assert!(!is_busy(&http2));
    }
}
