//! PINGs to a silent peer.

use std::task::{Context, Poll};
use std::time::Duration;

use h2::{Ping, PingPong};

/// How often a silent peer is sent a PING, and how long it may take to answer.
pub(crate) const KEEP_ALIVE: (Duration, Duration) =
    (Duration::from_secs(60), Duration::from_secs(20));

/// Sends PINGs to a silent peer.
#[derive(Debug)]
pub(crate) struct Pings {
    pings: PingPong,
    is_awaited: bool,
    /// Number of requests at the last check.
    asked: u64,
}

impl Pings {
    pub(crate) const fn new(pings: PingPong) -> Self {
        Self { pings, is_awaited: false, asked: 0 }
    }

    /// Sends a PING unless there were requests since the last time, and returns the time until the
    /// next check; `None` if the peer is gone.
    pub(crate) fn send(&mut self, asked: u64) -> Option<Duration> {
        let has_spoken = std::mem::replace(&mut self.asked, asked) != asked;
        if has_spoken {
            return Some(KEEP_ALIVE.0);
        }
        if self.is_awaited || self.pings.send_ping(Ping::opaque()).is_err() {
            return None;
        }
        self.is_awaited = true;
        Some(KEEP_ALIVE.1)
    }

    /// Ready when the peer has answered the PING.
    pub(crate) fn poll_pong(&mut self, context: &mut Context<'_>) -> Poll<()> {
        if self.is_awaited && matches!(self.pings.poll_pong(context), Poll::Ready(Ok(_))) {
            self.is_awaited = false;
            return Poll::Ready(());
        }
        Poll::Pending
    }
}
