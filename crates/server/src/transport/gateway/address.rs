//! One address of an upstream, with the state that all workers share.
//!
//! # Ejection
//! After [`MAX_FAILURES`] failures in a row, an address gets no requests for a while. Then its
//! share of the requests grows in ten steps, and a failure before its first response ejects it
//! again. If no address of an upstream is available, all are used.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use tokio::time::sleep;
use tracing::{info, warn};

use super::names::Names;
use crate::settings::UpstreamAddress;

/// Number of failures in a row that ejects an address.
const MAX_FAILURES: u32 = 5;

/// The share of an address that may always be chosen, in per cent.
const WHOLE: u8 = 100;
const STEP: u8 = 10;

/// The outcome of a request to an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// The head of a response arrived.
    Answered,
    /// All connections of the pool were in use.
    Busy,
    /// No connection could be opened.
    ConnectFailed,
    /// The connection ended before the head of a response.
    NoResponse,
    /// The head did not arrive in time.
    TimedOut,
    /// The head was malformed.
    Malformed,
    /// The connection ended within the body of the response.
    Cut,
    /// The client did not send all of its request.
    ClientGone,
}

impl Outcome {
    pub(crate) const ALL: [Self; 8] = [
        Self::Answered,
        Self::Busy,
        Self::ConnectFailed,
        Self::NoResponse,
        Self::TimedOut,
        Self::Malformed,
        Self::Cut,
        Self::ClientGone,
    ];

    /// The name in metrics.
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Answered => "answered",
            Self::Busy => "busy",
            Self::ConnectFailed => "connect_failed",
            Self::NoResponse => "no_response",
            Self::TimedOut => "timed_out",
            Self::Malformed => "malformed",
            Self::Cut => "cut",
            Self::ClientGone => "client_gone",
        }
    }
}

/// An address and its counters.
#[derive(Debug)]
pub(crate) struct Address {
    pub(crate) settings: UpstreamAddress,
    /// `host:port`, for metrics and logs.
    pub(crate) name: String,
    pub(crate) upstream: String,
    /// How long an ejection lasts; `None` if the upstream has no other address.
    eject_for: Option<Duration>,
    in_progress: AtomicUsize,
    connections: AtomicUsize,
    outcomes: [AtomicU64; Outcome::ALL.len()],
    retries: AtomicU64,
    failures_in_a_row: AtomicU32,
    ejections: AtomicU64,
    /// Percentage of the times that it may be chosen; 0 while it is ejected.
    share: AtomicU8,
    is_healthy: AtomicBool,
    names: Names,
}

/// A request in progress, until dropped.
#[derive(Debug)]
pub(super) struct InProgress(Arc<Address>);

/// An open connection, until dropped.
#[derive(Debug)]
pub(super) struct Open(Arc<Address>);

impl Address {
    pub(super) fn new(
        settings: UpstreamAddress,
        upstream: &str,
        eject_for: Option<Duration>,
    ) -> Arc<Self> {
        Arc::new(Self {
            name: settings.to_string(),
            settings,
            upstream: upstream.into(),
            eject_for,
            in_progress: AtomicUsize::new(0),
            connections: AtomicUsize::new(0),
            outcomes: Default::default(),
            retries: AtomicU64::new(0),
            failures_in_a_row: AtomicU32::new(0),
            ejections: AtomicU64::new(0),
            share: AtomicU8::new(WHOLE),
            is_healthy: AtomicBool::new(true),
            names: Names::default(),
        })
    }

    /// The socket addresses behind it. The system's resolver looks up a host name each time.
    pub(super) async fn resolved(&self) -> io::Result<Arc<[SocketAddr]>> {
        let UpstreamAddress { host, port } = &self.settings;
        match host.parse::<IpAddr>() {
            Ok(address) => Ok([SocketAddr::new(address, *port)].into()),
            Err(_) => self.names.look_up(host, *port).await,
        }
    }

    /// Whether the address may be chosen for this request.
    pub(super) fn is_available(&self) -> bool {
        let share = self.share.load(Ordering::Relaxed);
        let is_in_share = share == WHOLE || fastrand::u8(..WHOLE) < share;
        is_in_share && self.is_healthy()
    }

    /// Whether the address gets requests, even if only a share of them.
    pub(super) fn is_in_use(&self) -> bool {
        self.is_healthy() && !self.is_ejected()
    }

    pub(crate) fn in_progress(&self) -> usize {
        self.in_progress.load(Ordering::Relaxed)
    }

    pub(crate) fn connections(&self) -> usize {
        self.connections.load(Ordering::Relaxed)
    }

    pub(crate) fn is_ejected(&self) -> bool {
        self.share.load(Ordering::Relaxed) == 0
    }

    pub(crate) fn ejections(&self) -> u64 {
        self.ejections.load(Ordering::Relaxed)
    }

    pub(crate) fn retries(&self) -> u64 {
        self.retries.load(Ordering::Relaxed)
    }

    pub(crate) fn is_healthy(&self) -> bool {
        self.is_healthy.load(Ordering::Relaxed)
    }

    pub(crate) fn outcomes(&self, outcome: Outcome) -> u64 {
        self.outcomes[outcome as usize].load(Ordering::Relaxed)
    }

    pub(super) fn begin(self: &Arc<Self>) -> InProgress {
        self.in_progress.fetch_add(1, Ordering::Relaxed);
        InProgress(Arc::clone(self))
    }

    pub(super) fn open(self: &Arc<Self>) -> Open {
        self.connections.fetch_add(1, Ordering::Relaxed);
        Open(Arc::clone(self))
    }

    pub(super) fn count_retry(&self) {
        self.retries.fetch_add(1, Ordering::Relaxed);
    }

    /// Records the outcome of a request. Failures in a row eject the address.
    pub(super) fn record(self: &Arc<Self>, outcome: Outcome) {
        self.outcomes[outcome as usize].fetch_add(1, Ordering::Relaxed);
        match outcome {
            Outcome::Answered => {
                // Written only if it changes, because other workers read it at each request.
                if self.failures_in_a_row.load(Ordering::Relaxed) > 0 {
                    self.failures_in_a_row.store(0, Ordering::Relaxed);
                }
            }
            // These do not count against the address: otherwise clients could eject it.
            Outcome::Busy | Outcome::ClientGone => {}
            Outcome::ConnectFailed
            | Outcome::NoResponse
            | Outcome::TimedOut
            | Outcome::Malformed
            | Outcome::Cut => self.fail(),
        }
    }

    fn fail(self: &Arc<Self>) {
        let failures = self.failures_in_a_row.fetch_add(1, Ordering::Relaxed).saturating_add(1);
        let Some(eject_for) = self.eject_for.filter(|_| failures >= MAX_FAILURES) else { return };
        if self.share.swap(0, Ordering::Relaxed) == 0 {
            return;
        }
        self.ejections.fetch_add(1, Ordering::Relaxed);
        let (event, upstream, address) = ("upstream_ejected", &self.upstream, &self.name);
        warn!(event, upstream, address, "not used for {eject_for:?}: {failures} failures in a row");
        tokio::spawn(Arc::clone(self).come_back(eject_for));
    }

    async fn come_back(self: Arc<Self>, after: Duration) {
        sleep(after).await;
        self.failures_in_a_row.store(MAX_FAILURES - 1, Ordering::Relaxed);
        let (event, upstream, address) = ("upstream_returned", &self.upstream, &self.name);
        info!(event, upstream, address, "used again, for a growing share of the requests");
        for share in (0..WHOLE).step_by(STEP.into()) {
            let next = share + STEP;
            let grown =
                self.share.compare_exchange(share, next, Ordering::Relaxed, Ordering::Relaxed);
            if grown.is_err() {
                // The address was ejected again.
                return;
            }
            sleep(after / (WHOLE / STEP).into()).await;
        }
    }

    /// Records the verdict of the health check.
    pub(super) fn set_healthy(&self, is_healthy: bool, why: &str) {
        if self.is_healthy.swap(is_healthy, Ordering::Relaxed) == is_healthy {
            return;
        }
        let (upstream, address) = (&self.upstream, &self.name);
        if is_healthy {
            info!(event = "upstream_healthy", upstream, address, "the health check succeeds");
        } else {
            let event = "upstream_unhealthy";
            warn!(event, upstream, address, "not used: the health check fails: {why}");
        }
    }
}

impl InProgress {
    pub(super) const fn address(&self) -> &Arc<Address> {
        &self.0
    }
}

impl Drop for InProgress {
    fn drop(&mut self) {
        self.0.in_progress.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Drop for Open {
    fn drop(&mut self) {
        self.0.connections.fetch_sub(1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn address(eject_for: Option<Duration>) -> Arc<Address> {
        let settings = UpstreamAddress { host: "a".into(), port: 80 };
        Address::new(settings, "api", eject_for)
    }

    #[tokio::test(start_paused = true)]
    async fn five_failures_in_a_row_eject_an_address_and_one_more_does_so_again() {
        let address = address(Some(Duration::from_secs(10)));
        for _ in 0..2 {
            (0..4).for_each(|_| address.record(Outcome::NoResponse));
            address.record(Outcome::Answered);
        }
        assert!(address.is_available());
        (0..5).for_each(|_| address.record(Outcome::TimedOut));
        assert!(!address.is_available() && address.is_ejected());
        sleep(Duration::from_millis(10_500)).await;
        assert!(!address.is_ejected());
        assert_eq!(address.share.load(Ordering::Relaxed), STEP);
        address.record(Outcome::ConnectFailed);
        assert!(address.is_ejected());
        sleep(Duration::from_secs(21)).await;
        assert_eq!((address.share.load(Ordering::Relaxed), address.ejections()), (WHOLE, 2));
    }

    #[tokio::test(start_paused = true)]
    async fn the_only_address_is_never_ejected() {
        let address = address(None);
        (0..9).for_each(|_| address.record(Outcome::ConnectFailed));
        assert!(address.is_available());
    }
}
