//! Time from an outage until another server takes over.

use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use super::server::RedisServer;
use super::waiting::{comes_true, now};

/// The last server that a test took down.
#[derive(Debug, Default)]
pub(crate) struct LastOutage(Mutex<Option<Outage>>);

#[derive(Clone, Copy, Debug)]
struct Outage {
    port: u16,
    since: Instant,
}

impl LastOutage {
    /// Records the time, then takes `server` down.
    pub(crate) fn begin(&self, server: &RedisServer, take_down: impl FnOnce(&RedisServer)) {
        let outage = Outage { port: server.port(), since: now() };
        take_down(server);
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Some(outage);
    }

    /// Waits until `successor` names another server; returns the time since the outage began.
    pub(crate) fn wait_for_successor<'a>(
        &self,
        limit: Duration,
        successor: impl Fn() -> Option<&'a RedisServer>,
    ) -> Option<Duration> {
        let outage = *self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let outage = outage.expect("a primary was killed or paused before");
        comes_true(limit, || successor().is_some_and(|server| server.port() != outage.port))
            .then(|| outage.since.elapsed())
    }
}
